/* Where NVIDIA's libraries and programs lie: compiler and runtime look in the same places. */
#ifndef GRADC_BASE_CUDA_TOOLKIT_H
#define GRADC_BASE_CUDA_TOOLKIT_H

/* The folder of a toolkit: $CUDA_HOME, else /usr/local/cuda. */
const char *cuda_home(void);
/* A library that was opened ("libnvrtc.so.13"), where the loader looks by itself or in the toolkit's lib64; NULL: in neither. */
void *cuda_library_open(const char *soname);

#endif
