/* Stands behind the text of kernels and makes each kernel callable by the pretended driver. */
#include "tests/cuda/fake/harness_kernel.h"

template <int... I> struct Places {
};
template <int N, int... I> struct MakePlaces : MakePlaces<N - 1, N - 1, I...> {
};
template <int... I> struct MakePlaces<0, I...> {
	typedef Places<I...> Type;
};
template <typename T> struct IsPointer {
	static constexpr bool is = false;
};
template <typename T> struct IsPointer<T *> {
	static constexpr bool is = true;
};

template <auto KERNEL> struct Entry;
template <typename... A, void (*KERNEL)(A...)> struct Entry<KERNEL> {
	static constexpr int n = sizeof...(A);
	static constexpr int sizes[] = {(int)sizeof(A)...};
	static constexpr bool pointers[] = {IsPointer<A>::is...};

	template <int... I>
	static void
	call(void **parameters, Places<I...>)
	{
		KERNEL(*(A *)parameters[I]...);
	}
	static void
	run(void *parameters)
	{
		call((void **)parameters, typename MakePlaces<sizeof...(A)>::Type());
	}
};

#define HARNESS_ENTRY(NAME)                                                           \
	extern "C" {                                                                  \
	extern const HarnessKernel NAME##_entry;                                      \
	const HarnessKernel NAME##_entry = {Entry<NAME>::n, Entry<NAME>::sizes,       \
	                                    Entry<NAME>::pointers, Entry<NAME>::run}; \
	}
