/*
 * Lines of XFER_DEBUG and of xfer_log_set(), and the file of XFER_TRACE. Any thread may write:
 * lines and records are written whole, and locks guard the caller's log function and the trace.
 */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "descriptor.h"
#include "text.h"

enum { TRACKS = 64, MAX_NAMED = 4096 };

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
/* Guards log_fn, and is held while that is called. A fork does not wait for it, since log_fn may
 * wait for what the forking thread has, such as Python's interpreter. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool is_logging; /* this thread is in log_fn */
static _Atomic(const xfi_ranges *) ranges;
static int debug_level = XFER_LOG_NONE; /* of XFER_DEBUG */
static xfer_log_fn log_fn;              /* of xfer_log_set(), as are the next two */
static void *log_context;
static int log_level = XFER_LOG_NONE;
static atomic_int most_wanted;     /* the higher of both levels */
static atomic_int debug_file = -1; /* of XFER_DEBUG; -1: none, here and below */
static atomic_int trace_file = -1; /* of XFER_TRACE; forked children have none */
static char host[64];
/* Guards what is written to the trace, and which tracks have their name in it, as bits. */
static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char named_tracks[MAX_NAMED / 8];

/* ---- the environment ---- */

/* A pipe without a reader counts as a file that cannot be written: no program should wait for a
 * reader of its log. -1 and errno. */
static int open_to_write(const char *path)
{
  const int file = xfi_descriptor_kept(
      open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  const int flags = file < 0 ? -1 : fcntl(file, F_GETFL);

  if (flags >= 0 && fcntl(file, F_SETFL, flags & ~O_NONBLOCK) == 0) return file;
  return xfi_descriptor_drop(file);
}

/* Replaces %h and %p in the name. */
static int open_named(const char *name)
{
  char path[4096];
  xfi_text text;

  xfi_text_fixed(&text, path, sizeof path);
  for (; *name != '\0'; name++) {
    const char what = name[0] == '%' ? name[1] : '\0';

    if (what == 'h')
      xfi_text_printf(&text, "%s", host);
    else if (what == 'p')
      xfi_text_printf(&text, "%ld", (long)getpid());
    else
      xfi_text_add(&text, name, 1);
    if (what == 'h' || what == 'p') name++;
  }
  return open_to_write(path);
}

/* Writes it in one call, so that what others write does not come between. Blocks SIGPIPE, so that a
 * pipe without a reader does not end the process. 0, or errno. */
static int write_whole(int file, const char *bytes, size_t n_bytes)
{
  sigset_t pipe, mask, pending;
  int why = 0;

  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &mask);
  sigpending(&pending);
  while (n_bytes > 0 && why == 0) {
    const ssize_t n = write(file, bytes, n_bytes);

    if (n >= 0) {
      bytes += n;
      n_bytes -= (size_t)n;
    } else if (errno != EINTR) {
      why = errno;
    }
  }
  while (!sigismember(&pending, SIGPIPE) &&
         sigtimedwait(&pipe, NULL, &(struct timespec){0, 0}) == SIGPIPE)
    continue;
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  return why;
}

static const char *const levels[] = {"", "WARN", "INFO", "TRACE"}; /* by xfer_log_level */

/* Is it that word, but for case? Not by toupper(): a locale may have another capital of i. */
static bool is_word(const char *text, const char *word)
{
  while (*word != '\0' && (*text >= 'a' && *text <= 'z' ? *text - 'a' + 'A' : *text) == *word)
    text++, word++;
  return *text == *word;
}

static void read_level(const char *debug)
{
  for (int i = XFER_LOG_NONE; i <= XFER_LOG_TRACE; i++) {
    if (!is_word(debug, levels[i])) continue;
    debug_level = i;
    return;
  }
  fprintf(stderr, "xfer: XFER_DEBUG is WARN, INFO or TRACE, not \"%s\"\n", debug);
}

/* Passes a line to log_fn, which may fork or end the process. False: there is none for this level.
 */
static bool log_line(int level, int rank, const char *line)
{
  const bool is_first = !is_logging;
  bool logs;

  if (is_first) pthread_mutex_lock(&log_lock);
  is_logging = true;
  logs = log_fn != NULL && level <= log_level;
  if (logs) log_fn(log_context, (xfer_log_level)level, rank, line);
  if (!is_first) return logs;
  is_logging = false;
  pthread_mutex_unlock(&log_lock);
  return logs;
}

/* Reports a file that was asked for and cannot be written: to the program's own log, with errno
 * set, else on stderr. */
static void report_unwritten(const char *variable, int error)
{
  if (error == 0) return;
  char why[128] = "", line[256];

  (void)strerror_r(error, why, sizeof why);
  snprintf(line, sizeof line, "the file of %s cannot be written: %s", variable, why);
  errno = error;
  if (!log_line(XFER_LOG_WARN, -1, line)) fprintf(stderr, "xfer: %s\n", line);
}

static void in_child(void)
{
  atomic_store(&trace_file, xfi_descriptor_drop(trace_file));
  if (!is_logging) (void)pthread_mutex_init(&log_lock, NULL); /* whoever had it is not here */
}

/* 0, or the errno for which the trace is given up: what comes after a gap is worth nothing. Under
 * the lock. */
static int write_trace(const char *bytes, size_t n_bytes)
{
  const int why = write_whole(trace_file, bytes, n_bytes);

  if (why != 0) atomic_store(&trace_file, xfi_descriptor_drop(trace_file));
  return why;
}

/* At the end of the process, or when the library is unloaded. */
static void end_trace(void)
{
  static const char end[] = "{}]\n";
  int failed = 0;

  if (trace_file < 0) return;
  pthread_mutex_lock(&trace_lock);
  if (trace_file >= 0) failed = write_trace(end, sizeof end - 1);
  atomic_store(&trace_file, xfi_descriptor_drop(trace_file));
  pthread_mutex_unlock(&trace_lock);
  report_unwritten("XFER_TRACE", failed);
}

static void read_environment(void)
{
  const char *debug = getenv("XFER_DEBUG");
  const char *file = getenv("XFER_DEBUG_FILE");
  const char *trace = getenv("XFER_TRACE");

  gethostname(host, sizeof host - 1);
  if (debug != NULL) read_level(debug);
  atomic_store(&most_wanted, debug_level);
  if (debug_level != XFER_LOG_NONE && file != NULL) debug_file = open_named(file);
  if (debug_level != XFER_LOG_NONE && debug_file < 0) {
    if (file != NULL && file[0] != '\0') report_unwritten("XFER_DEBUG_FILE", errno);
    debug_file = STDERR_FILENO;
  }
  if (trace != NULL && trace[0] != '\0') {
    trace_file = open_named(trace);
    report_unwritten("XFER_TRACE", trace_file < 0 ? errno : write_trace("[\n", 2));
  }
  pthread_atfork(NULL, NULL, in_child);
  atexit(end_trace);
}

/* ---- writing ---- */

/* A file that cannot be written is given up, and the line goes to stderr. */
static void print_line(int level, const xfi_span *span, const char *line)
{
  char whole[XFI_ERROR_BYTES + 512];
  xfi_text text;
  int file = debug_file;
  int why;

  if (file < 0 || level > debug_level) return;
  xfi_text_fixed(&text, whole, sizeof whole);
  xfi_text_printf(&text, "%s:%ld [%d] XFER %s %s\n", host, (long)getpid(), span->rank,
                  levels[level], line);
  why = write_whole(file, whole, strlen(whole));
  if (why == 0 || file == STDERR_FILENO) return;
  if (atomic_compare_exchange_strong(&debug_file, &file, STDERR_FILENO))
    report_unwritten("XFER_DEBUG_FILE", why);
  (void)write_whole(STDERR_FILENO, whole, strlen(whole));
}

/* A track's name, once. Under the lock. */
static void name_track(xfi_text *text, const xfi_span *span, long id)
{
  static const char *const names[] = {
      "calls",           "local", "shared memory", "packed: gather", "packed: messages",
      "packed: scatter", "direct"};
  const bool known = id >= 0 && id < MAX_NAMED;

  if (known && (named_tracks[id / 8] & 1 << id % 8) != 0) return;
  if (known) named_tracks[id / 8] |= (unsigned char)(1 << id % 8);
  xfi_text_printf(text,
                  "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%ld,\"tid\":%ld,"
                  "\"args\":{\"name\":\"rank %d %s",
                  (long)getpid(), id, span->rank,
                  names[span->track < XFI_TRACK_DIRECT ? span->track : XFI_TRACK_DIRECT]);
  if (span->track > XFI_TRACK_DIRECT) xfi_text_printf(text, " %d", span->track - XFI_TRACK_DIRECT);
  xfi_text_printf(text, "\"}},\n");
}

static void trace_span(const xfi_span *span, int64_t ended, xfer_status st, const char *what)
{
  const int track = span->track < TRACKS ? span->track : TRACKS - 1;
  const long id = (long)span->rank * TRACKS + track;
  const int64_t ns = ended - span->began; /* as numbers of microseconds, in no locale's way */
  char events[XFI_ERROR_BYTES + 1024];
  xfi_text text;
  int failed = 0;

  if (trace_file < 0) return;
  pthread_mutex_lock(&trace_lock);
  xfi_text_fixed(&text, events, sizeof events);
  name_track(&text, span, id);
  xfi_text_printf(&text,
                  "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%ld,\"ts\":%" PRId64
                  ".%03d,\"dur\":%" PRId64 ".%03d,\"args\":{\"status\":\"%s\",\"what\":\"%s\"}},\n",
                  span->name, (long)getpid(), id, span->began / 1000, (int)(span->began % 1000),
                  ns / 1000, (int)(ns % 1000), xfer_status_name(st), what);
  if (trace_file >= 0) failed = write_trace(events, strlen(events));
  pthread_mutex_unlock(&trace_lock);
  report_unwritten("XFER_TRACE", failed);
}

/* Replaces the characters that JSON would have escaped, and bytes that are not UTF-8. */
static void make_plain(char *text)
{
  for (size_t n = 1; *text != '\0'; text += n) {
    n = xfi_text_character(text);
    if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\') *text = '\'';
    if (n > 0) continue;
    *text = '?';
    n = 1;
  }
}

xfi_span xfi_span_begin(xfi_subsys subsys, int rank, int track, const char *name)
{
  xfi_span span = {name, subsys, rank, track, 0};
  const xfi_ranges *profiler = atomic_load_explicit(&ranges, memory_order_acquire);

  pthread_once(&environment_once, read_environment);
  if (profiler != NULL && track == XFI_TRACK_CALLS) profiler->push(name);
  if (atomic_load_explicit(&most_wanted, memory_order_relaxed) != XFER_LOG_NONE || trace_file >= 0)
    span.began = xfi_now_ns();
  return span;
}

/* The end of a span that is logged, printed or traced. */
__attribute__((format(printf, 3, 0))) static void report_end(const xfi_span *span, xfer_status st,
                                                             const char *fmt, va_list args)
{
  static const char *const names[] = {"COMM", "PLAN", "RUN"};
  const int64_t ended = xfi_now_ns();
  char line[XFI_ERROR_BYTES + 256];
  int level = span->subsys == XFI_SYS_RUN ? XFER_LOG_TRACE : XFER_LOG_INFO;
  char text[XFI_ERROR_BYTES + 128] = "";

  if (st == XFER_OK) {
    vsnprintf(text, sizeof text, fmt, args);
  } else {
    level = XFER_LOG_WARN;
    snprintf(text, sizeof text, "%s: %s", xfer_status_name(st), xfer_last_error());
  }
  make_plain(text);
  snprintf(line, sizeof line, "%s %s: %s%s%.3f ms", names[span->subsys], span->name, text,
           text[0] != '\0' ? ", " : "", (double)(ended - span->began) / 1e6);
  (void)log_line(level, span->rank, line);
  print_line(level, span, line);
  trace_span(span, ended, st, text);
}

void xfi_span_end(const xfi_span *span, xfer_status st, const char *fmt, ...)
{
  const xfi_ranges *profiler = atomic_load_explicit(&ranges, memory_order_acquire);
  va_list args;

  if (profiler != NULL && span->track == XFI_TRACK_CALLS) profiler->pop();
  if (span->began == 0) return;
  va_start(args, fmt);
  report_end(span, st, fmt, args);
  va_end(args);
}

void xfer_log_set(xfer_log_fn fn, void *context, xfer_log_level level)
{
  pthread_mutex_lock(&log_lock);
  log_fn = fn;
  log_context = context;
  log_level = fn == NULL ? XFER_LOG_NONE : (int)level;
  pthread_mutex_unlock(&log_lock);
  pthread_once(&environment_once, read_environment); /* which tells what cannot be opened */
  pthread_mutex_lock(&log_lock);
  atomic_store(&most_wanted, debug_level > log_level ? debug_level : log_level);
  pthread_mutex_unlock(&log_lock);
}

void xfi_trace_ranges(const xfi_ranges *those)
{
  atomic_store_explicit(&ranges, those, memory_order_release);
}
