/* Arithmetic of IEEE 754 as it is by default, whatever mode the caller's thread is in: to nearest
 * even, with denormal numbers, without traps. A thread has another mode after
 * torch.set_flush_denormal(), or where some library was linked with -ffast-math. */
#ifndef XFI_FLOAT_MODE_H
#define XFI_FLOAT_MODE_H

#include <fenv.h>

static inline void xfi_float_mode_enter(fenv_t *callers)
{
  (void)fegetenv(callers);
  (void)fesetenv(FE_DFL_ENV);
}

/* Restores the caller's mode. Exceptions raised meanwhile are dropped. */
static inline void xfi_float_mode_leave(const fenv_t *callers)
{
  (void)fesetenv(callers);
}

#endif
