/* The rendezvous file (GRADC_RENDEZVOUS=file://PATH), in which rank 0 writes the address where it listens. The file may be left
 * from an older run. So it holds a nonce, and a rank trusts the address only if the process listening there knows the nonce. */
#include "base/files/files.h"
#include "runtime/comm/tcp/link.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char form[] = "gradc rendezvous 1\njob %016" PRIx64 "\nnonce %016" PRIx64
			   "\nhost %s\nport %d\n";

/* Refuses to overwrite a file that is not a rendezvous file. An empty file may be overwritten: the user has reserved the
 * name. */
static Status
check_place(const char *path)
{
	struct stat st;
	TcpMeeting m;

	if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0 ||
	    tcp_meeting_read(path, &m))
		return NULL; /* other faults are reported when the file is opened */
	return status_error(EXIT_USAGE,
	                    "GRADC_RENDEZVOUS=file://%s: the file exists, but is not a "
	                    "rendezvous file: it would be written over",
	                    path);
}

Status
tcp_meeting_write(const char *path, const TcpMeeting *m)
{
	Text text = {0};

	RETURN_IF_ERROR(check_place(path));
	text_printf(&text, form, m->job, m->nonce, m->host, m->port);
	Status status = file_write(path, text.at, (int64_t)text.n);
	text_free(&text);
	return status;
}

bool
tcp_meeting_read(const char *path, TcpMeeting *out)
{
	enum { MOST_BYTES = 1024 };
	Arena *arena = arena_new();
	void *bytes = NULL;
	int64_t n = 0;
	int end = 0;

	*out = (TcpMeeting){0};
	Status status = file_read(arena, path, MOST_BYTES, &bytes, &n);
	char *text = status ? NULL : arena_strndup(arena, bytes, (size_t)n);
	status_free(status);
	bool is = text &&
	          sscanf(text,
	                 "gradc rendezvous 1 job %16" SCNx64 " nonce %16" SCNx64
	                 " host %255s port %d%n",
	                 &out->job, &out->nonce, out->host, &out->port, &end) == 4 &&
	          strcmp(text + end, "\n") == 0 && out->port > 0 && out->port < 65536;
	arena_free(arena);
	return is;
}
