/* Adapters as Hugging Face's PEFT writes and reads them: a folder with adapter_config.json, and adapter_model.safetensors
 * with the tensors of each adapted module M (src/peft/utils/save_and_load.py):
 *
 *	base_model.model.M.lora_A.weight    [rank, inputs], of a convolution [rank, inputs, window...]
 *	base_model.model.M.lora_B.weight    [outputs, rank], of a convolution [outputs, rank, 1...]
 *	base_model.model.M.lora_magnitude_vector [outputs], of a convolution [1, outputs, 1...], with DoRA
 *	base_model.model.M.lora_embedding_A [rank, rows], lora_embedding_B [row's elements, rank] of a table
 *
 * and base_model.model.M.weight of what was trained as a whole (modules_to_save). peft.c says what lies where,
 * peft_write.c and peft_load.c move it. */
#ifndef GRADC_PEFT_H
#define GRADC_PEFT_H

#include "runtime/model/model.h"

/* A module that reads an adapter's weight: as products, or as a table. */
typedef struct {
	const AdapterRecord *record;
	const char *name;
	bool is_table;
} PeftModule;
typedef VEC(PeftModule) PeftModules;
PeftModules peft_modules(Arena *arena, const Format *f);

/* A tensor of the file, and the state that holds it. */
typedef struct {
	const char *name;
	uint32_t state;
	bool turn;     /* the file has the transpose */
	int rank_axis; /* of the state, along which the rank lies; -1: it has none */
	int rank;      /* of the file's tensor, whose last axes are 1 */
	int lead;      /* axes of 1 before the state's */
} PeftPart;
enum { MAX_PEFT_PARTS = 3 };
/* How many: the two parts, and the magnitude where there is one. */
int peft_parts(Arena *arena, const Format *f, const PeftModule *m, PeftPart parts[MAX_PEFT_PARTS]);

/* Trained, and no part of an adapter. */
bool peft_is_trained_whole(const Format *f, int state);
PeftPart peft_trained_part(Arena *arena, const Format *f, int state);

/* Metadata of the tensors' file say by this key beside which numbers the module's adapter stands, as 16 hexadecimal digits. */
const char *peft_base_key(Arena *arena, const PeftModule *m);

/* Whether adapters, and what else is trained, have a place there; option: for messages. */
Status peft_check(const Format *f, const char *option);

const int64_t *peft_dims(const Format *f, uint32_t state);
int64_t peft_rank(const Format *f, const AdapterRecord *r);
/* A matrix of elements of `size` bytes, in the arena. */
void *peft_transposed(Arena *arena, const char *from, int64_t rows, int64_t columns, int64_t size);

#endif
