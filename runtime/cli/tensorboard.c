/* Writes the event file of --tensorboard, which TensorBoard reads, with the numbers of the log as scalars.
 *
 * A file is a sequence of records: length (u64), its checksum, a tensorflow.Event in protobuf's wire format, its checksum. All
 * numbers are little endian; checksums are masked CRC-32C (RFC 3720).
 * https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
 *
 * Each record is written immediately, without buffering, so a killed run keeps the records written so far. */
#include "runtime/cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct EventFile {
	FileAppender *file;
	uint32_t crc_table[256];
};

enum { CRC_POLYNOMIAL = 0x82f63b78, CRC_MASK = 0xa282ead8 };

static void
fill_crc_table(uint32_t table[256])
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
		table[i] = crc;
	}
}

static uint32_t
masked_crc(const EventFile *e, const void *bytes, size_t n)
{
	const unsigned char *at = bytes;
	uint32_t crc = ~0u;

	for (size_t i = 0; i < n; i++)
		crc = crc >> 8 ^ e->crc_table[(crc ^ at[i]) & 255];
	crc = ~crc;
	return (crc >> 15 | crc << 17) + CRC_MASK;
}

static Status
write_record(EventFile *e, const Text *event)
{
	uint64_t n = event->n;
	uint32_t head = masked_crc(e, &n, sizeof(n)), tail = masked_crc(e, event->at, event->n);
	Text record = {0};

	text_add_bytes(&record, &n, sizeof(n));
	text_add_bytes(&record, &head, sizeof(head));
	text_add_bytes(&record, event->at, event->n);
	text_add_bytes(&record, &tail, sizeof(tail));
	Status status = file_appender_add(e->file, record.at, record.n);
	text_free(&record);
	return status;
}

/* ---- protobuf's wire format: field number << 3 | kind, then the value */
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };

static void
add_varint(Text *t, uint64_t value)
{
	do {
		unsigned char byte = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
		text_add_bytes(t, &byte, 1);
		value >>= 7;
	} while (value);
}

static void
add_bytes(Text *t, int field, const void *bytes, size_t n)
{
	add_varint(t, (uint64_t)(field << 3 | WIRE_BYTES));
	add_varint(t, n);
	text_add_bytes(t, bytes, n);
}

static void
add_time(Text *t)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
	add_varint(t, EVENT_TIME << 3 | WIRE_64);
	text_add_bytes(t, &seconds, sizeof(seconds));
}

/* Adds a point to a curve; for NaN no point is added. */
static void
add_scalar(Text *summary, const char *tag, double value)
{
	float single = (float)value;
	Text t = {0};

	if (isnan(value))
		return;
	add_bytes(&t, VALUE_TAG, tag, strlen(tag));
	add_varint(&t, VALUE_SIMPLE << 3 | WIRE_32);
	text_add_bytes(&t, &single, sizeof(single));
	add_bytes(summary, SUMMARY_VALUE, t.at, t.n);
	text_free(&t);
}

static Status
write_summary(EventFile *e, int64_t step, const Text *summary)
{
	Text event = {0};

	add_time(&event);
	add_varint(&event, EVENT_STEP << 3 | WIRE_VARINT);
	add_varint(&event, (uint64_t)step);
	add_bytes(&event, EVENT_SUMMARY, summary->at, summary->n);
	Status status = write_record(e, &event);
	text_free(&event);
	return status;
}

static Status
write_head(EventFile *e)
{
	static const char version[] = "brain.Event:2";
	Text event = {0};

	add_time(&event);
	add_bytes(&event, EVENT_VERSION, version, sizeof(version) - 1);
	Status status = write_record(e, &event);
	text_free(&event);
	return status;
}

Status
tensorboard_open(const char *folder, EventFile **out)
{
	char host[256] = "localhost";
	Text name = {0};

	*out = NULL;
	if (!folder)
		return NULL;
	RETURN_IF_ERROR(folder_make(folder));
	EventFile *e = memory_zeroed(1, sizeof(*e));
	gethostname(host, sizeof(host) - 1);
	text_printf(&name, "%s/events.out.tfevents.%lld.%s.%ld", folder, (long long)time(NULL),
	            host, (long)getpid());
	fill_crc_table(e->crc_table);
	Status status = file_appender_open(name.at, false, &e->file);
	text_free(&name);
	if (!status)
		status = write_head(e);
	if (status)
		status_free(tensorboard_close(e));
	else
		*out = e;
	return status;
}

static void
add_eval(Text *summary, const GradcEval *e)
{
	add_scalar(summary, "eval/loss", e->loss);
	add_scalar(summary, "eval/accuracy", e->accuracy);
	add_scalar(summary, "eval/perplexity", e->perplexity);
}

static void
add_averaged(Text *summary, const GradcEval *e)
{
	add_scalar(summary, "eval_ema/loss", e->loss);
	add_scalar(summary, "eval_ema/accuracy", e->accuracy);
	add_scalar(summary, "eval_ema/perplexity", e->perplexity);
}

static Status
finish_summary(EventFile *e, int64_t step, Text *summary)
{
	Status status = summary->n ? write_summary(e, step, summary) : NULL;

	text_free(summary);
	return status;
}

Status
tensorboard_eval_before(EventFile *e, const GradcEval *eval, int64_t step)
{
	Text summary = {0};

	if (!e)
		return NULL;
	add_eval(&summary, eval);
	return finish_summary(e, step, &summary);
}

Status
tensorboard_step(EventFile *e, const Gradc *run, const GradcStep *s, const StepEval *eval)
{
	int64_t tokens = gradc_tokens_per_row(run);
	Text summary = {0};

	if (!e)
		return NULL;
	add_scalar(&summary, "loss", s->loss);
	add_scalar(&summary, "lr", s->lr);
	add_scalar(&summary, "grad_norm", s->grad_norm);
	if (!isnan(s->loss_scale))
		add_scalar(&summary, "loss_scale", s->loss_scale);
	add_scalar(&summary, "speed/step_ms", 1e3 * s->seconds);
	add_scalar(&summary, "speed/data_ms", 1e3 * s->data_seconds);
	add_scalar(&summary, "speed/save_ms", 1e3 * s->save_seconds);
	add_scalar(&summary, "speed/rows_per_s", (double)s->rows / s->seconds);
	if (tokens)
		add_scalar(&summary, "speed/tokens_per_s", (double)(s->rows * tokens) / s->seconds);
	if (eval->trained)
		add_eval(&summary, eval->trained);
	if (eval->averaged)
		add_averaged(&summary, eval->averaged);
	return finish_summary(e, s->step, &summary);
}

Status
tensorboard_close(EventFile *e)
{
	if (!e)
		return NULL;
	Status status = file_appender_close(e->file);
	memory_free(e);
	return status;
}
