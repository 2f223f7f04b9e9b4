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
/* Guards both files; a fork holds it. The next two are the signals of the thread that has it. */
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static sigset_t mask_before;
static bool had_sigpipe;
/* Guards log_fn, and is held while that is called. A fork does not wait for it, since log_fn may
 * wait for what the forking thread has, such as Python's interpreter. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool is_logging; /* this thread is in log_fn */
static _Atomic(const xfi_ranges *) ranges;
static int debug_level = XFER_LOG_NONE; /* of XFER_DEBUG */
static xfer_log_fn log_fn;              /* of xfer_log_set(), as are the next two */
static void *log_context;
static int log_level = XFER_LOG_NONE;
static atomic_int most_wanted; /* the higher of both levels */
static int subsystems = XFI_SYS_COMM | XFI_SYS_PLAN | XFI_SYS_RUN;
static FILE *debug_file;           /* of XFER_DEBUG */
static _Atomic(FILE *) trace_file; /* of XFER_TRACE */
static char host[64];
static unsigned char named_tracks[MAX_NAMED / 8]; /* bits: tracks whose name is in the file */

/* ---- the environment ---- */

/* A pipe without a reader counts as a file that cannot be written: no program should wait for a
 * reader of its log. */
static FILE *open_to_write(const char *path)
{
  const int fd =
      xfi_descriptor_kept(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666));
  FILE *file = NULL;

  if (fd < 0) return NULL;
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0) file = fdopen(fd, "w");
  if (file == NULL) close(fd);
  return file;
}

/* Replaces %h and %p in the name. */
static FILE *open_named(const char *name)
{
  char path[4096];
  size_t n = 0;

  for (; *name != '\0' && n + sizeof host < sizeof path; name++) {
    if (name[0] == '%' && name[1] == 'h')
      n += (size_t)snprintf(path + n, sizeof path - n, "%s", host);
    else if (name[0] == '%' && name[1] == 'p')
      n += (size_t)snprintf(path + n, sizeof path - n, "%ld", (long)getpid());
    else
      path[n++] = *name;
    if (name[0] == '%' && (name[1] == 'h' || name[1] == 'p')) name++;
  }
  path[n] = '\0';
  return open_to_write(path);
}

/* Is it that word, but for case? Not by toupper(): a locale may have another capital of i. */
static bool is_word(const char *text, size_t n, const char *word)
{
  if (strlen(word) != n) return false;
  for (size_t i = 0; i < n; i++)
    if ((text[i] >= 'a' && text[i] <= 'z' ? text[i] - 'a' + 'A' : text[i]) != word[i]) return false;
  return true;
}

static void read_subsystems(const char *list)
{
  static const struct {
    const char *name;
    int bit;
  } all[] = {{"COMM", XFI_SYS_COMM}, {"PLAN", XFI_SYS_PLAN}, {"RUN", XFI_SYS_RUN}, {"ALL", 7}};
  const bool without = list[0] == '^';
  int given = 0;

  for (list += without; *list != '\0'; list += list[0] == ',') {
    const size_t n = strcspn(list, ",");
    int bits = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
      if (is_word(list, n, all[i].name)) bits = all[i].bit;
    if (bits == 0)
      fprintf(stderr, "xfer: XFER_DEBUG_SUBSYS has COMM, PLAN, RUN and ALL, not \"%.*s\"\n", (int)n,
              list);
    given |= bits;
    list += n;
  }
  subsystems = without ? ~given : given;
}

static const char *const levels[] = {"", "WARN", "INFO", "TRACE"}; /* by xfer_log_level */

static void read_level(const char *debug)
{
  for (int i = XFER_LOG_NONE; i <= XFER_LOG_TRACE; i++) {
    if (!is_word(debug, strlen(debug), levels[i])) continue;
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
  if (logs) log_fn(log_context, level, rank, line);
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

/* Blocks SIGPIPE meanwhile, so that a pipe without a reader does not end the process. */
static void take_lock(void)
{
  sigset_t pipe, pending;
  sigset_t mask;

  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &mask);
  sigpending(&pending);
  pthread_mutex_lock(&files_lock);
  mask_before = mask;
  had_sigpipe = sigismember(&pending, SIGPIPE) != 0;
}

static void give_lock(void)
{
  const sigset_t mask = mask_before;
  const bool keep = had_sigpipe;
  sigset_t pipe;

  pthread_mutex_unlock(&files_lock);
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  while (!keep && sigtimedwait(&pipe, NULL, &(struct timespec){0, 0}) == SIGPIPE)
    continue;
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

/* Closes the trace; 0, or the errno of what failed. Under the lock. */
static int end_trace(void)
{
  FILE *file = atomic_exchange(&trace_file, NULL);
  const bool failed = ferror(file) != 0;
  const int why = errno;

  if (fclose(file) == 0 && !failed) return 0;
  return failed ? why : errno;
}

/* Nobody else writes while a process forks. The child writes no spans, and the buffer is empty, or
 * its contents would be written twice. */
static void before_fork(void)
{
  take_lock();
  if (trace_file != NULL) (void)fflush(trace_file);
}

static void in_child(void)
{
  if (trace_file != NULL) (void)fclose(atomic_exchange(&trace_file, NULL));
  if (!is_logging) (void)pthread_mutex_init(&log_lock, NULL); /* whoever had it is not here */
  give_lock();
}

/* At the end of the process, or when the library is unloaded. */
static void close_files(void)
{
  int failed = 0;

  take_lock();
  if (trace_file != NULL) {
    fprintf(trace_file, "{}]\n");
    failed = end_trace();
  }
  if (debug_file != NULL && debug_file != stderr) (void)fclose(debug_file);
  debug_file = NULL;
  give_lock();
  report_unwritten("XFER_TRACE", failed);
}

static void read_environment(void)
{
  const char *debug = getenv("XFER_DEBUG");
  const char *list = getenv("XFER_DEBUG_SUBSYS");
  const char *file = getenv("XFER_DEBUG_FILE");
  const char *trace = getenv("XFER_TRACE");

  gethostname(host, sizeof host - 1);
  if (debug != NULL) read_level(debug);
  atomic_store(&most_wanted, debug_level);
  if (list != NULL) read_subsystems(list);
  if (debug_level != XFER_LOG_NONE && file != NULL) debug_file = open_named(file);
  if (debug_level != XFER_LOG_NONE && debug_file == NULL) {
    if (file != NULL && file[0] != '\0') report_unwritten("XFER_DEBUG_FILE", errno);
    debug_file = stderr;
  }
  if (trace != NULL && trace[0] != '\0') {
    trace_file = open_named(trace);
    if (trace_file == NULL) report_unwritten("XFER_TRACE", errno);
  }
  if (trace_file != NULL) fprintf(trace_file, "[\n");
  pthread_atfork(before_fork, give_lock, in_child);
  atexit(close_files);
}

/* ---- writing ---- */

static void print_line(FILE *file, int level, const xfi_span *span, const char *line)
{
  fprintf(file, "%s:%ld [%d] XFER %s %s\n", host, (long)getpid(), span->rank, levels[level], line);
}

/* 0, or the errno for which the file is given up, without the line in it. Under the lock. */
static int write_debug(int level, const xfi_span *span, const char *line)
{
  int why;

  if (debug_file == NULL || level > debug_level || (subsystems & (int)span->subsys) == 0) return 0;
  print_line(debug_file, level, span, line);
  if (fflush(debug_file) == 0 || debug_file == stderr) return 0;
  why = errno;
  (void)fclose(debug_file);
  debug_file = stderr;
  return why;
}

/* Writes a track's name, once. */
static void name_track(const xfi_span *span, long id)
{
  static const char *const names[] = {
      "calls",           "local", "shared memory", "packed: gather", "packed: messages",
      "packed: scatter", "direct"};
  const bool known = id >= 0 && id < MAX_NAMED;

  if (known && (named_tracks[id / 8] & 1 << id % 8) != 0) return;
  if (known) named_tracks[id / 8] |= (unsigned char)(1 << id % 8);
  fprintf(
      trace_file,
      "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%ld,\"tid\":%ld,\"args\":{\"name\":\"rank "
      "%d %s",
      (long)getpid(), id, span->rank,
      names[span->track < XFI_TRACK_DIRECT ? span->track : XFI_TRACK_DIRECT]);
  if (span->track > XFI_TRACK_DIRECT) fprintf(trace_file, " %d", span->track - XFI_TRACK_DIRECT);
  fprintf(trace_file, "\"}},\n");
}

/* 0, or the errno for which the trace is given up. Under the lock. */
static int write_trace(const xfi_span *span, int64_t ended, xfer_status st, const char *text)
{
  const int track = span->track < TRACKS ? span->track : TRACKS - 1;
  const long id = (long)span->rank * TRACKS + track;
  const int64_t ns = ended - span->began; /* as numbers of microseconds, in no locale's way */

  name_track(span, id);
  fprintf(trace_file,
          "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%ld,\"ts\":%" PRId64
          ".%03d,\"dur\":%" PRId64 ".%03d,\"args\":{\"status\":\"%s\",\"what\":\"%s\"}},\n",
          span->name, (long)getpid(), id, span->began / 1000, (int)(span->began % 1000), ns / 1000,
          (int)(ns % 1000), xfer_status_name(st), text);
  return ferror(trace_file) == 0 ? 0 : end_trace(); /* what comes after a gap is worth nothing */
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
  if (atomic_load_explicit(&most_wanted, memory_order_relaxed) != XFER_LOG_NONE ||
      trace_file != NULL)
    span.began = xfi_now_ns();
  return span;
}

/* The end of a span that is logged, printed or traced. */
__attribute__((format(printf, 3, 0))) static void report_end(const xfi_span *span, xfer_status st,
                                                             const char *fmt, va_list args)
{
  static const char *const names[] = {"", "COMM", "PLAN", "", "RUN"};
  const int64_t ended = xfi_now_ns();
  char line[XFI_ERROR_BYTES + 256];
  int debug_failed = 0, trace_failed = 0;
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
  take_lock();
  debug_failed = write_debug(level, span, line);
  if (trace_file != NULL) trace_failed = write_trace(span, ended, st, text);
  give_lock();
  report_unwritten("XFER_DEBUG_FILE", debug_failed);
  if (debug_failed != 0) print_line(stderr, level, span, line);
  report_unwritten("XFER_TRACE", trace_failed);
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

void xfer_log_set(xfer_log_fn fn, void *context, int level)
{
  pthread_mutex_lock(&log_lock);
  log_fn = fn;
  log_context = context;
  log_level = fn == NULL ? XFER_LOG_NONE : level;
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
