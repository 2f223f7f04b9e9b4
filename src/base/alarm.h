/* One thread that calls back at deadlines, for waits that a device makes by itself: a caller may
 * only ever synchronise its stream, and so would never notice. */
#ifndef XFI_ALARM_H
#define XFI_ALARM_H

#include "clock.h"
#include "plugin_api.h"

#include <stdbool.h>

#include <xfer/xfer.h>

typedef struct xfi_alarms xfi_alarms;

/* One deadline, a member of the struct that it is for, whose owner zeroes it. The lock of the
 * alarms guards it. */
typedef struct xfi_alarm xfi_alarm;
struct xfi_alarm {
  /* Called by the thread at `at_ns` or soon after, with no lock held. Returns the time of the
   * next call; INT64_MAX: there is none. */
  int64_t (*ring)(xfi_alarm *alarm, int64_t now_ns);
  xfi_alarm *next;
  int64_t at_ns;
  bool is_set;
};

/* The thread calls `begin` first, unless NULL. It takes no signals. */
XFI_PLUGIN_API xfer_status xfi_alarms_create(xfi_alarms **alarms, void (*begin)(void *context),
                                             void *context);
/* Called when no alarm is set. NULL is fine. */
XFI_PLUGIN_API void xfi_alarms_destroy(xfi_alarms *alarms);
/* Set the alarm, or move it to another deadline. Allocates nothing. */
XFI_PLUGIN_API void xfi_alarm_set(xfi_alarms *alarms, xfi_alarm *alarm, xfi_deadline deadline);
/* Afterwards the alarm neither rings nor is ringing. The caller holds no lock that ring() takes. */
XFI_PLUGIN_API void xfi_alarm_clear(xfi_alarms *alarms, xfi_alarm *alarm);

#endif
