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

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both files; forks take it */
static sigset_t before;                                  /* of who has it */
static bool had_signal;
/* Of who is told, while it is told. Nobody who forks waits for it: what is told may wait for what
 * the forking thread has, such as Python's interpreter. */
static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool is_telling; /* this thread */
static _Atomic(const xfi_ranges *) ranges;
static int said = XFER_LOG_NONE; /* by XFER_DEBUG */
static xfer_log_fn told;
static void *told_context;
static int told_level = XFER_LOG_NONE;
static atomic_int wanted; /* the higher of both levels */
static int subsystems = XFI_SYS_COMM | XFI_SYS_PLAN | XFI_SYS_RUN;
static FILE *lines;           /* of XFER_DEBUG */
static _Atomic(FILE *) spans; /* of XFER_TRACE */
static char host[64];
static unsigned char named[MAX_NAMED / 8]; /* bits: tracks that have their name in the file */

/* ---- the environment ---- */

/* A pipe that nobody reads is a file that cannot be written: no program waits for a reader of its
 * log. */
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

/* %h and %p of a name of a file. */
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

/* Is it that word, but for case? Whatever the program's locale takes for a capital I. */
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
    said = i;
    return;
  }
  fprintf(stderr, "xfer: XFER_DEBUG is WARN, INFO or TRACE, not \"%s\"\n", debug);
}

/* False: nobody is told such lines. What is told may fork or end the process. */
static bool tell(int level, int rank, const char *line)
{
  const bool is_first = !is_telling;
  bool tells;

  if (is_first) pthread_mutex_lock(&telling);
  is_telling = true;
  tells = told != NULL && level <= told_level;
  if (tells) told(told_context, level, rank, line);
  if (!is_first) return tells;
  is_telling = false;
  pthread_mutex_unlock(&telling);
  return tells;
}

/* Who asks for a file and does not get it should not look for the reason elsewhere. A program that
 * has its own log has it there, with errno set. */
static void say_not_written(const char *variable, int error)
{
  if (error == 0) return;
  char why[128] = "", line[256];

  (void)strerror_r(error, why, sizeof why);
  snprintf(line, sizeof line, "the file of %s cannot be written: %s", variable, why);
  errno = error;
  if (!tell(XFER_LOG_WARN, -1, line)) fprintf(stderr, "xfer: %s\n", line);
}

/* Who has the lock is not ended by SIGPIPE, where a pipe has no reader any more. */
static void take_lock(void)
{
  sigset_t pipe, pending;
  sigset_t mask;

  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &mask);
  sigpending(&pending);
  pthread_mutex_lock(&lock);
  before = mask;
  had_signal = sigismember(&pending, SIGPIPE) != 0;
}

static void give_lock(void)
{
  const sigset_t mask = before;
  const bool keep = had_signal;
  sigset_t pipe;

  pthread_mutex_unlock(&lock);
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  while (!keep && sigtimedwait(&pipe, NULL, &(struct timespec){0, 0}) == SIGPIPE)
    continue;
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

/* No more is written; 0, or what went wrong. Under the lock. */
static int end_spans(void)
{
  FILE *file = atomic_exchange(&spans, NULL);
  const bool failed = ferror(file) != 0;
  const int why = errno;

  if (fclose(file) == 0 && !failed) return 0;
  return failed ? why : errno;
}

/* Nobody else writes while a process forks. The child has no place in the file of spans, nor what
 * waits to be written, else it would come twice. */
static void before_fork(void)
{
  take_lock();
  if (spans != NULL) (void)fflush(spans);
}

static void in_child(void)
{
  if (spans != NULL) (void)fclose(atomic_exchange(&spans, NULL));
  if (!is_telling) (void)pthread_mutex_init(&telling, NULL); /* whoever had it is not here */
  give_lock();
}

/* The process ends, or the library goes out of it. */
static void close_files(void)
{
  int failed = 0;

  take_lock();
  if (spans != NULL) {
    fprintf(spans, "{}]\n");
    failed = end_spans();
  }
  if (lines != NULL && lines != stderr) (void)fclose(lines);
  lines = NULL;
  give_lock();
  say_not_written("XFER_TRACE", failed);
}

static void read_environment(void)
{
  const char *debug = getenv("XFER_DEBUG");
  const char *list = getenv("XFER_DEBUG_SUBSYS");
  const char *file = getenv("XFER_DEBUG_FILE");
  const char *trace = getenv("XFER_TRACE");

  gethostname(host, sizeof host - 1);
  if (debug != NULL) read_level(debug);
  atomic_store(&wanted, said);
  if (list != NULL) read_subsystems(list);
  if (said != XFER_LOG_NONE && file != NULL) lines = open_named(file);
  if (said != XFER_LOG_NONE && lines == NULL) {
    if (file != NULL && file[0] != '\0') say_not_written("XFER_DEBUG_FILE", errno);
    lines = stderr;
  }
  if (trace != NULL && trace[0] != '\0') {
    spans = open_named(trace);
    if (spans == NULL) say_not_written("XFER_TRACE", errno);
  }
  if (spans != NULL) fprintf(spans, "[\n");
  pthread_atfork(before_fork, give_lock, in_child);
  atexit(close_files);
}

/* ---- writing ---- */

static void print_line(FILE *file, int level, const xfi_span *span, const char *line)
{
  fprintf(file, "%s:%ld [%d] XFER %s %s\n", host, (long)getpid(), span->rank, levels[level], line);
}

/* 0, or why the file is given up, in which the line is not. Under the lock. */
static int write_line(int level, const xfi_span *span, const char *line)
{
  int why;

  if (lines == NULL || level > said || (subsystems & (int)span->subsys) == 0) return 0;
  print_line(lines, level, span, line);
  if (fflush(lines) == 0 || lines == stderr) return 0;
  why = errno;
  (void)fclose(lines);
  lines = stderr;
  return why;
}

/* What a track is called, once in the file. */
static void name_track(const xfi_span *span, long id)
{
  static const char *const names[] = {
      "calls",           "local", "shared memory", "packed: gather", "packed: messages",
      "packed: scatter", "direct"};
  const bool known = id >= 0 && id < MAX_NAMED;

  if (known && (named[id / 8] & 1 << id % 8) != 0) return;
  if (known) named[id / 8] |= (unsigned char)(1 << id % 8);
  fprintf(
      spans,
      "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%ld,\"tid\":%ld,\"args\":{\"name\":\"rank "
      "%d %s",
      (long)getpid(), id, span->rank,
      names[span->track < XFI_TRACK_DIRECT ? span->track : XFI_TRACK_DIRECT]);
  if (span->track > XFI_TRACK_DIRECT) fprintf(spans, " %d", span->track - XFI_TRACK_DIRECT);
  fprintf(spans, "\"}},\n");
}

/* Likewise. */
static int write_span(const xfi_span *span, int64_t ended, xfer_status st, const char *text)
{
  const int track = span->track < TRACKS ? span->track : TRACKS - 1;
  const long id = (long)span->rank * TRACKS + track;
  const int64_t ns = ended - span->began; /* as numbers of microseconds, in no locale's way */

  name_track(span, id);
  fprintf(spans,
          "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%ld,\"ts\":%" PRId64
          ".%03d,\"dur\":%" PRId64 ".%03d,\"args\":{\"status\":\"%s\",\"what\":\"%s\"}},\n",
          span->name, (long)getpid(), id, span->began / 1000, (int)(span->began % 1000), ns / 1000,
          (int)(ns % 1000), xfer_status_name(st), text);
  return ferror(spans) == 0 ? 0 : end_spans(); /* what comes after a gap is worth nothing */
}

/* No character that JSON would take for another, and none that it does not have. */
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

  pthread_once(&once, read_environment);
  if (profiler != NULL && track == XFI_TRACK_CALLS) profiler->push(name);
  if (atomic_load_explicit(&wanted, memory_order_relaxed) != XFER_LOG_NONE || spans != NULL)
    span.began = xfi_now_ns();
  return span;
}

/* Of a span that somebody looks at. */
__attribute__((format(printf, 3, 0))) static void tell_end(const xfi_span *span, xfer_status st,
                                                           const char *fmt, va_list args)
{
  static const char *const names[] = {"", "COMM", "PLAN", "", "RUN"};
  const int64_t ended = xfi_now_ns();
  char line[XFI_ERROR_BYTES + 256];
  int lines_failed = 0, spans_failed = 0;
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
  (void)tell(level, span->rank, line);
  take_lock();
  lines_failed = write_line(level, span, line);
  if (spans != NULL) spans_failed = write_span(span, ended, st, text);
  give_lock();
  say_not_written("XFER_DEBUG_FILE", lines_failed);
  if (lines_failed != 0) print_line(stderr, level, span, line);
  say_not_written("XFER_TRACE", spans_failed);
}

void xfi_span_end(const xfi_span *span, xfer_status st, const char *fmt, ...)
{
  const xfi_ranges *profiler = atomic_load_explicit(&ranges, memory_order_acquire);
  va_list args;

  if (profiler != NULL && span->track == XFI_TRACK_CALLS) profiler->pop();
  if (span->began == 0) return;
  va_start(args, fmt);
  tell_end(span, st, fmt, args);
  va_end(args);
}

void xfer_log_set(xfer_log_fn fn, void *context, int level)
{
  pthread_mutex_lock(&telling);
  told = fn;
  told_context = context;
  told_level = fn == NULL ? XFER_LOG_NONE : level;
  pthread_mutex_unlock(&telling);
  pthread_once(&once, read_environment); /* which tells what cannot be opened */
  pthread_mutex_lock(&telling);
  atomic_store(&wanted, said > told_level ? said : told_level);
  pthread_mutex_unlock(&telling);
}

void xfi_trace_ranges(const xfi_ranges *those)
{
  atomic_store_explicit(&ranges, those, memory_order_release);
}
