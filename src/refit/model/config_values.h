/* Figures of a configuration: what names in expressions come to that are no words of the rules. */
#ifndef XFI_CONFIG_VALUES_H
#define XFI_CONFIG_VALUES_H

#include "expr.h"

struct json_t;

/* The text part of a configuration; NULL: it has none. */
const struct json_t *xfi_config_text(const struct json_t *top);
/* A key of the text part, else of the whole; NULL: it is in neither. */
const struct json_t *xfi_config_key(const struct json_t *top, const char *key);

/* The context of xfi_config_value_of_layer(); that of xfi_config_value() is the configuration
 * alone. Both functions are `find` of a scope. */
typedef struct xfi_config_layer {
  const struct json_t *top;
  int64_t layer;
} xfi_config_layer;

xfi_found xfi_config_value(int64_t *value, const char *name, size_t n_chars, const void *top);
xfi_found xfi_config_value_of_layer(int64_t *value, const char *name, size_t n_chars,
                                    const void *context);

#endif
