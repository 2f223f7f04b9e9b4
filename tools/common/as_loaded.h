/* What a tool, or a test, means by a SPEC such as "vllm:tp2" that does not say how the engine's
 * kernels changed the experts' weights: that they left them as they were loaded. */
#ifndef TOOLS_AS_LOADED_H
#define TOOLS_AS_LOADED_H

#include <stdbool.h>
#include <string.h>

#include <xfer/refit.h>

static inline bool spec_has_item(const char *spec, const char *item)
{
  const size_t n = strlen(item);

  for (const char *at = strpbrk(spec, ":,"); at != NULL; at = strpbrk(at + 1, ":,"))
    if (strncmp(at + 1, item, n) == 0 && (at[n + 1] == ',' || at[n + 1] == '\0')) return true;
  return false;
}

static inline bool spec_is_of(const char *spec, const char *engine)
{
  const size_t n = strlen(engine);

  return strncmp(spec, engine, n) == 0 && (spec[n] == ':' || spec[n] == '\0');
}

/* Makes `loaded` the only item of the options if the SPEC is an engine's and lacks it. */
static inline void take_as_loaded(xfer_side_options *options, const char *spec)
{
  static const char *const FORMS[] = {"loaded", "up_first", "interleaved", "transposed"};
  static const char *const LOADED[] = {"loaded"};
  static const int32_t ONE[] = {1};
  bool is_said = !spec_is_of(spec, "vllm") && !spec_is_of(spec, "sglang");

  for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS && !is_said; i++)
    is_said = spec_has_item(spec, FORMS[i]);
  options->item_names = is_said ? NULL : LOADED;
  options->item_values = is_said ? NULL : ONE;
  options->n_items = !is_said;
}

#endif
