/* Calls LAPACK's singular value decomposition. The library is opened on first use. */
#include "base/numbers/numbers.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#define LIBRARY "liblapack.so.3"

/* https://netlib.org/lapack/explore-html/d1/d54/group__gesdd.html. The lengths of strings come last, as in gfortran's calling
 * convention. */
typedef void Gesdd(const char *job, const int *m, const int *n, double *a, const int *lda,
                   double *s, double *u, const int *ldu, double *vt, const int *ldvt, double *work,
                   const int *lwork, int *iwork, int *info, size_t job_length);

static Status
open_library(void **library, Gesdd **out)
{
	*library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	*out = *library ? (Gesdd *)dlsym(*library, "dgesdd_") : NULL;
	if (*out)
		return NULL;
	Status status = status_error(EXIT_UNSUPPORTED,
	                             "LAPACK's " LIBRARY " cannot be opened (%s): Debian's package "
	                             "liblapack3 has it",
	                             dlerror());
	if (*library)
		dlclose(*library);
	return status;
}

/* LAPACK is column-major: it sees the transposed matrix, so its u is our vt and its vt our u. */
static Status
decompose(Arena *arena, Gesdd *gesdd, int rows, int columns, double *matrix, const Svd *out)
{
	int k = (int)out->n, info = 0, lwork = -1;
	int *iwork = NEW_ARRAY(arena, int, 8 * (int64_t)k);
	double size = 0;

	gesdd("S", &columns, &rows, matrix, &columns, out->s, out->vt, &columns, out->u, &k, &size,
	      &lwork, iwork, &info, 1);
	lwork = info == 0 && size < INT_MAX ? (int)size : 0;
	double *work = NEW_ARRAY(arena, double, lwork);
	if (lwork)
		gesdd("S", &columns, &rows, matrix, &columns, out->s, out->vt, &columns, out->u, &k,
		      work, &lwork, iwork, &info, 1);
	return info == 0 && lwork
	               ? NULL
	               : status_error(EXIT_SYSTEM, "LAPACK's dgesdd of a matrix [%d,%d]: info %d",
	                              rows, columns, info);
}

Status
svd(Arena *arena, int64_t rows, int64_t columns, double *matrix, Svd *out)
{
	int64_t k = rows < columns ? rows : columns;
	void *library;
	Gesdd *gesdd;

	*out = (Svd){.n = k};
	if (rows > INT_MAX || columns > INT_MAX)
		return status_error(EXIT_UNSUPPORTED,
		                    "a matrix [%lld,%lld] is too large for LAPACK", (long long)rows,
		                    (long long)columns);
	out->u = NEW_ARRAY(arena, double, rows *k);
	out->s = NEW_ARRAY(arena, double, k);
	out->vt = NEW_ARRAY(arena, double, k *columns);
	if (k == 0)
		return NULL;
	RETURN_IF_ERROR(open_library(&library, &gesdd));
	Arena *scratch = arena_new();
	Status status = decompose(scratch, gesdd, (int)rows, (int)columns, matrix, out);
	arena_free(scratch);
	dlclose(library);
	return status;
}
