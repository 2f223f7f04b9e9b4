/* The text of a thread's last failed call, and the macros that every function is built from.
 *
 * The function that decides an error sets the text, once, with the values; its callers pass the
 * status up unchanged. Nothing here allocates, so that running out of memory can be reported too.
 */
#ifndef XFI_ERROR_H
#define XFI_ERROR_H

#include "plugin_api.h"

#include <stddef.h>
#include <xfer/xfer.h>

enum { XFI_ERROR_BYTES = 512 };

/* Sets this thread's text, cut to XFI_ERROR_BYTES - 1 bytes, but never within a character. An
 * argument may be xfer_last_error(). */
XFI_PLUGIN_API __attribute__((format(printf, 1, 2))) void xfi_set_error(const char *fmt, ...);

/* Copies a text into to[size], cut in the same way. */
XFI_PLUGIN_API void xfi_cut_text(char *to, size_t size, const char *text);

/* A status and, if it is an error, its text, kept to be reported later. All zero: XFER_OK. */
typedef struct xfi_error {
  xfer_status st;
  char text[XFI_ERROR_BYTES];
} xfi_error;

/* Keep `st`, which the last call returned. */
static inline void xfi_error_keep(xfi_error *error, xfer_status st)
{
  error->st = st;
  if (st != XFER_OK) xfi_cut_text(error->text, sizeof error->text, xfer_last_error());
}

/* The status, with its text as the last error. */
static inline xfer_status xfi_error_report(const xfi_error *error)
{
  if (error->st != XFER_OK) xfi_set_error("%s", error->text);
  return error->st;
}

/* A function that has nothing to free returns an error at once. A function that has something to
 * free uses the macros in ..._DONE alone: they set its `xfer_status st` and go to its label `done`.
 * The text is a literal and its arguments; for XFER_ERR_NOMEM it says what the memory was for. */
#define XFI_TRY(call)                                                                              \
  do {                                                                                             \
    const xfer_status xfi_st = (call);                                                             \
    if (xfi_st != XFER_OK) return xfi_st;                                                          \
  } while (0)

#define XFI_TRY_DONE(call)                                                                         \
  do {                                                                                             \
    st = (call);                                                                                   \
    if (st != XFER_OK) goto done;                                                                  \
  } while (0)

/* Sets the text of XFER_ERR_NOMEM and gives that status. */
#define XFI_NO_MEMORY(...) (xfi_set_error("no memory for " __VA_ARGS__), XFER_ERR_NOMEM)

/* Sets the text of an error and gives its status, a constant. */
#define XFI_ERROR(status, ...)                                                                     \
  ((status) == XFER_ERR_NOMEM ? XFI_NO_MEMORY(__VA_ARGS__) : (xfi_set_error(__VA_ARGS__), (status)))

#define XFI_CHECK(cond, status, ...)                                                               \
  do {                                                                                             \
    if (!(cond)) return XFI_ERROR(status, __VA_ARGS__);                                            \
  } while (0)

#define XFI_CHECK_DONE(cond, status, ...)                                                          \
  do {                                                                                             \
    if (!(cond)) {                                                                                 \
      st = XFI_ERROR(status, __VA_ARGS__);                                                         \
      goto done;                                                                                   \
    }                                                                                              \
  } while (0)

/* Checks that an argument of a public function is not NULL, before the function makes anything:
 * XFI_NEED_WHERE only if `needed`, XFI_NEED_IN from a helper of the function called `who`. */
#define XFI_NEED_IN(who, needed, pointer)                                                          \
  XFI_CHECK(!(needed) || (pointer) != NULL, XFER_ERR_ARG, "%s: %s is NULL", who, #pointer)
#define XFI_NEED_WHERE(needed, pointer) XFI_NEED_IN(__func__, needed, pointer)
#define XFI_NEED(pointer) XFI_NEED_WHERE(1, pointer)

#endif
