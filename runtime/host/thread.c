/* Starts threads with all signals blocked: signals are handled by the caller's threads. */
#include "base/base.h"
#include "runtime/host/host.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

Status
thread_start(pthread_t *thread, const char *what_for, void *(*run)(void *), void *context)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(thread, NULL, run, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error ? status_error(EXIT_SYSTEM, "no thread %s: %s", what_for, strerror(error))
	             : NULL;
}
