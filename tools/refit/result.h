/* What xfer_refit says at its end. */
#ifndef TOOLS_REFIT_RESULT_H
#define TOOLS_REFIT_RESULT_H

#include "rank.h"

/* Both return the status to end with. With `json` stdout gets one JSON object and nothing else. */
int result_print(const refit_case *what, const refit_result *result, bool json);
/* args_say(), after an interrupt too. */
int result_failed(const char *error);

#endif
