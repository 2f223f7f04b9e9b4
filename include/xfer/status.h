/**
 * @file status.h
 * The outcome of calls, the version, messages, and what ends a wait.
 */
#ifndef XFER_STATUS_H
#define XFER_STATUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define XFER_API __attribute__((visibility("default")))
#define XFER_MUST_CHECK __attribute__((warn_unused_result))
#else
#define XFER_API
#define XFER_MUST_CHECK
#endif
/** A function that is inline in C and C++ and also exported, for callers without a C compiler. */
#define XFER_API_INLINE inline

#define XFER_VERSION_MAJOR 0
#define XFER_VERSION_MINOR 1
#define XFER_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ------------------------------------------------------------------------------- */

/** The outcome of a call. Values never change; new ones are appended. */
typedef enum xfer_status {
  XFER_OK = 0,               /**< Done. */
  XFER_ERR_ARG = -1,         /**< An argument is wrong by itself. */
  XFER_ERR_SHAPE = -2,       /**< Sizes, strides or placements do not fit each other. */
  XFER_ERR_UNSUPPORTED = -3, /**< Well-formed, but this library or build cannot do it. */
  XFER_ERR_STATE = -4,       /**< The object is not in the state that the call needs. */
  XFER_ERR_NOMEM = -5,       /**< Out of memory. */
  XFER_ERR_OVERFLOW = -6,    /**< A size does not fit in 64 bits or in a type of a lower layer. */
  XFER_ERR_IO = -7,          /**< A file cannot be read or is malformed. */
  XFER_ERR_MISMATCH = -8,    /**< Ranks, or the two sides, disagree. */
  XFER_ERR_PEER = -9,        /**< Another rank failed; its own error gives the reason. */
  XFER_ERR_TIMEOUT = -10,    /**< A deadline passed, or the wait was interrupted. */
  XFER_ERR_CUDA = -11,       /**< CUDA failed; the text quotes its error. */
  XFER_ERR_COMM = -12,       /**< The transport failed; the text quotes its error. */
  XFER_ERR_INTERNAL = -13    /**< A defect of this library. */
} xfer_status;

/** The name of a status, such as "XFER_ERR_SHAPE"; "unknown status" for any other value. */
XFER_API const char *xfer_status_name(xfer_status status);

/**
 * The calling thread's text for its last failed call: one sentence, with the values. Never NULL; ""
 * if no call has failed yet. Valid until the thread's next failing call. Allocates nothing.
 */
XFER_API const char *xfer_last_error(void);

/** The library's version, for example "0.1.0". */
XFER_API const char *xfer_version(void);

/**
 * Compare the library's own size or offset with the one that a binding without a C compiler
 * assumes.
 *
 * @param name   A struct, such as "xfer_view", for its size; or a field, such as
 * "xfer_view.strides", for its offset.
 * @param value  The size or offset that the binding assumes, in bytes.
 * @retval XFER_ERR_MISMATCH  They differ; the text has both.
 * @retval XFER_ERR_ARG       No such struct or field.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_abi_check(const char *name, size_t value);

/* ---- what the library does ------------------------------------------------------------------ */

/** How much the library reports. */
typedef enum xfer_log_level {
  XFER_LOG_NONE = 0, /**< Nothing. */
  XFER_LOG_WARN = 1, /**< Failures of plans, commits, runs, waits, exchanges, redistributions and
                          registering. */
  XFER_LOG_INFO = 2, /**< Also comms, plans and commits. */
  XFER_LOG_TRACE = 3 /**< Also runs and their steps. */
} xfer_log_level;

/**
 * Receives a line about one call or step when it ends.
 *
 * @param context  As given to xfer_log_set().
 * @param level    What the line is about.
 * @param rank     The rank that made the call; -1: no rank: the line reports that a file of
 *                 XFER_DEBUG_FILE or XFER_TRACE could not be opened or written, and errno gives the
 *                 reason.
 * @param line     One line, such as "PLAN xfer_plan_commit: ..., 1.250 ms"; valid during the call.
 */
typedef void (*xfer_log_fn)(void *context, xfer_log_level level, int rank, const char *line);

/**
 * Pass the library's messages to a function, for a program's own log; XFER_DEBUG also writes them
 * to a file. This applies to the whole process, and opens the files of XFER_DEBUG_FILE and
 * XFER_TRACE if no call has opened them yet. Threads: safe; threads that are in a call of the
 * library call `fn`, one at a time, and `fn` must not call the library.
 *
 * @param fn       NULL: pass nothing, the default.
 * @param context  Passed to `fn`.
 * @param level    The library does not pass lines above it.
 */
XFER_API void xfer_log_set(xfer_log_fn fn, void *context, xfer_log_level level);

/* ---- ending a wait -------------------------------------------------------------------------- */

/**
 * Tells a waiting thread, which calls it, whether to continue to wait.
 *
 * @param context  As given to xfer_interrupt_set().
 * @return         0: continue. Any other value ends the wait.
 */
typedef int (*xfer_interrupt_fn)(void *context);

/**
 * Let a function end this thread's waits, for example when a signal has come. Calls that wait for
 * other ranks or for a device call it every 20 to 50 ms, the first time after as long. If it
 * returns a value other than 0, the deadline of the call counts as passed: the call returns within
 * about 2 s, mostly at once, with XFER_ERR_TIMEOUT and a text that says that the rank was
 * interrupted. The other ranks, the comm and its plans are then in the same state as after a missed
 * deadline; in xfer_plan_wait() as after the run's own deadline, so the run does not touch memory
 * again. If the data has arrived meanwhile, the call may still return XFER_OK. Later calls wait
 * again, and call the function again.
 *
 * `fn` should end a wait once. If it does so again before the call has returned, it also ends the
 * waits of up to 2 s that the call needs to leave the other ranks in order; a text then says what
 * may still touch memory.
 *
 * On a comm of an MPI_Comm, nobody calls it while MPI itself waits.
 *
 * A signal handler must not jump out of a call of the library (longjmp()), nor may the thread be
 * cancelled inside one (pthread_cancel()): locks, and the thread's current CUDA device, would stay
 * as the call left them. Make this function end the wait instead.
 *
 * Threads: applies to the calling thread alone, which also calls `fn`; `fn` must return. While `fn`
 * runs it is unset: its own calls of the library, for other comms, call no function, or the one
 * that it sets for them; after it has returned it is set again.
 *
 * @param fn       NULL: no function, the default.
 * @param context  Passed to `fn`.
 */
XFER_API void xfer_interrupt_set(xfer_interrupt_fn fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
