/* Calls as ranges of NVIDIA's profilers. */
#ifndef XFI_CUDA_NVTX_H
#define XFI_CUDA_NVTX_H

/* From now on, where the toolkit's header was there when this was built. */
void xfi_cuda_nvtx(void);

#endif
