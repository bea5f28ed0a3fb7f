/* Private to programs: words of the text form that only programs have. All lists end with NULL. */
#ifndef GRADC_IR_PROGRAMS_WORDS_H
#define GRADC_IR_PROGRAMS_WORDS_H

extern const char *const travel_words[]; /* by TravelKind */
extern const char
	*const loop_words[]; /* by -1 - count, for counts that the number of ranks gives */

#endif
