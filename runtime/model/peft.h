/* Private to runtime/model: adapters in the format of Hugging Face's PEFT. A folder has adapter_config.json, and
 * adapter_model.safetensors with the tensors of each adapted module M (src/peft/utils/save_and_load.py):
 *
 * base_model.model.M.lora_A.weight    [rank, inputs], of a convolution [rank, inputs, window...]
 * base_model.model.M.lora_B.weight    [outputs, rank], of a convolution [outputs, rank, 1...]
 * base_model.model.M.lora_magnitude_vector  [outputs], of a convolution [1, outputs, 1...], with DoRA
 * base_model.model.M.lora_embedding_A  [rank, rows], lora_embedding_B [row's elements, rank] of a table
 *
 * Parameters that are trained whole (modules_to_save) are base_model.model.M.weight. peft.c knows where each tensor is;
 * peft_write.c and peft_load.c write and read them. */
#ifndef GRADC_RUNTIME_MODEL_PEFT_H
#define GRADC_RUNTIME_MODEL_PEFT_H

#include "runtime/model/model.h"

/* A module that reads an adapter's weight, as a product's operand or as a table. */
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
	bool turn;     /* the file holds the transpose */
	int rank_axis; /* the state's axis of length rank; -1 if it has none */
	/* number of axes of the file's tensor; axes that follow the state's axes have length 1 */
	int rank;
	int lead; /* axes of length 1 before the state's axes */
} PeftPart;
enum { MAX_PEFT_PARTS = 3 };
/* Returns the number of parts: two, and the magnitude with dora. */
int peft_parts(Arena *arena, const Format *f, const PeftModule *m, PeftPart parts[MAX_PEFT_PARTS]);

/* Is the state trained, but not a part of an adapter? */
bool peft_is_trained_whole(const Format *f, int state);
PeftPart peft_trained_part(Arena *arena, const Format *f, int state);

/* Key in the metadata of the tensors' file. Its value is the hash of the weight that the module's adapter was trained with, as
 * 16 hexadecimal digits. */
const char *peft_base_key(Arena *arena, const PeftModule *m);

/* Can PEFT represent all adapters and other trained parameters? option: for messages. */
Status peft_check(const Format *f, const char *option);

const int64_t *peft_dims(const Format *f, uint32_t state);
int64_t peft_rank(const Format *f, const AdapterRecord *r);

#endif
