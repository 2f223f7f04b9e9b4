/* What a plan does on each rank, found by simulation. */
#include "report.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "args.h"
#include "draw.h"
#include "html.h"
#include "interrupt.h"
#include "predict.h"
#include "progress.h"
#include "text.h"
#include "traffic.h"

static int print_rank(const plan_whole *whole, const plan_args *args)
{
  const int rank = (int)args->rank;
  const xfer_plan_options options = plan_options(whole->domain);
  xfer_plan *plan = NULL;
  char *text = NULL;
  int status = EXIT_SUCCESS;

  if (xfer_plan_simulate(&plan, whole->n_ranks, rank, whole->tensors, whole->n_tensors, &options) !=
          XFER_OK ||
      xfer_plan_print(plan, &text, args->json ? 1 : 0) != XFER_OK) {
    status = plan_failed();
  } else {
    fputs(text, stdout);
  }
  xfer_text_free(text);
  xfer_plan_destroy(plan);
  return status;
}

static void print_json(const plan_whole *whole, const plan_traffic *traffic, uint64_t delivered)
{
  printf("{\"tensors\":%" PRIu64 ",\"payload_bytes\":%" PRIu64 ",\"delivered_bytes\":%" PRIu64 ",",
         whole->names, whole->payload_bytes, delivered);
  if (whole->refit != NULL) {
    const xfer_refit_report_data *r = whole->refit;

    printf("\"ruled_bytes\":%" PRIu64 ",\"misc_bytes\":%" PRIu64 ",\"hooks\":%" PRIu64
           ",\"ignored\":%" PRIu64 ",\"duplicates\":%" PRIu64 ",\"largest_bytes\":%" PRIu64 ",",
           r->ruled_bytes, r->misc_bytes, r->hooks, r->ignored, r->duplicates, r->largest_bytes);
  }
  printf("\"ranks\":[");
  for (int rank = 0; rank < whole->n_ranks; rank++) {
    const xfer_plan_report_data *r = &traffic->ranks[rank];

    printf("%s{\"rank\":%d,\"in_bytes\":%" PRIu64 ",\"self_bytes\":%" PRIu64
           ",\"out_bytes\":%" PRIu64 ",\"wire_bytes\":%" PRIu64,
           rank > 0 ? "," : "", rank, r->in_bytes, r->self_bytes, r->out_bytes, r->wire_bytes);
    if (whole->domain > 0)
      printf(",\"crossed_bytes\":%" PRIu64 ",\"relayed_bytes\":%" PRIu64, r->crossed_bytes,
             r->relayed_bytes);
    printf(",\"seconds\":%.9g}", traffic->seconds[rank]);
  }
  printf("]}\n");
}

/* Prints the bytes that crossed between domains, and those that relays saved from crossing. */
static void print_crossed(const plan_whole *whole, const xfer_plan_report_data *reports)
{
  uint64_t crossed = 0;
  uint64_t relayed = 0;

  for (int rank = 0; rank < whole->n_ranks; rank++) {
    crossed += reports[rank].crossed_bytes;
    relayed += reports[rank].relayed_bytes;
  }
  printf("\n%s cross between domains of %" PRId64 " ranks, which relay %s that would cross too\n",
         text_bytes((double)crossed).at, whole->domain, text_bytes((double)relayed).at);
}

static void print_text(const plan_whole *whole, const plan_traffic *traffic, uint64_t delivered)
{
  const xfer_plan_report_data *reports = traffic->ranks;

  text_print(stdout, whole->title);
  printf("\n%" PRIu64 " tensor%s of %s; %s delivered; %d rank%s\n", whole->names,
         whole->names == 1 ? "" : "s", text_bytes((double)whole->payload_bytes).at,
         text_bytes((double)delivered).at, whole->n_ranks, whole->n_ranks == 1 ? "" : "s");
  if (whole->refit != NULL)
    printf("%s by rules, %s whole (misc); %" PRIu64
           " tensors need a hook of the engine; the largest has %s\n",
           text_bytes((double)whole->refit->ruled_bytes).at,
           text_bytes((double)whole->refit->misc_bytes).at, whole->refit->hooks,
           text_bytes((double)whole->refit->largest_bytes).at);
  if (whole->refit != NULL && whole->refit->ruled_bytes == 0)
    printf(
        "No rule knows these tensors, so each goes whole to every rank: is the model_type one of "
        "docs/models.md?\n");
  printf("\n%6s %10s %10s %10s %10s %6s %6s %10s\n", "rank", "gets", "of itself", "from wire",
         "sends", "from", "to", "predicted");
  for (int rank = 0; rank < whole->n_ranks; rank++) {
    const xfer_plan_report_data *r = &reports[rank];

    printf("%6d %10s %10s %10s %10s %6" PRIu64 " %6" PRIu64 " %10s%s\n", rank,
           text_bytes((double)r->in_bytes).at, text_bytes((double)r->self_bytes).at,
           text_bytes((double)r->wire_bytes).at, text_bytes((double)r->out_bytes).at,
           r->n_recv_peers, r->n_send_peers, text_seconds(traffic->seconds[rank]).at,
           traffic->guesses[rank] ? " *" : "");
  }
  if (whole->domain > 0) print_crossed(whole, reports);
  predict_print_machine(whole->machine, traffic->guessed);
}

int plan_check_rank(const plan_args *args, int n_ranks)
{
  if (args->rank < n_ranks) return 0;
  return args_wrong("--rank %lld: there %s %d rank%s", (long long)args->rank,
                    n_ranks == 1 ? "is" : "are", n_ranks, n_ranks == 1 ? "" : "s");
}

bool plan_one(xfer_plan_report_data *report, int n_ranks, int rank, const xfer_tensor *tensors,
              size_t n_tensors)
{
  xfer_plan *plan = NULL;
  bool ok = xfer_plan_simulate(&plan, n_ranks, rank, tensors, n_tensors, NULL) == XFER_OK;

  *report = (xfer_plan_report_data)XFER_PLAN_REPORT_INIT;
  ok = ok && xfer_plan_report(plan, report) == XFER_OK;
  xfer_plan_destroy(plan);
  return ok;
}

/* A rank takes at least microseconds, and a line. */
enum { MOST_RANKS = 1 << 20 };

int plan_report(const plan_whole *whole, const plan_args *args)
{
  plan_traffic traffic = {.ranks = NULL};
  uint64_t delivered = 0;
  bool fits = true;

  if (args->rank >= 0) return print_rank(whole, args);
  if (whole->n_ranks > MOST_RANKS)
    return args_wrong("%d ranks: %d are the most of which all are looked at; --rank R shows one",
                      whole->n_ranks, MOST_RANKS);
  if (args->html != NULL) return plan_html(whole, args);
  if (args->svg != NULL) return plan_svg(whole, args);
  if (args->draw) return plan_draw(whole, args);
  if (!plan_traffic_find(&traffic, whole, false)) return EXIT_FAILURE;
  for (int rank = 0; rank < whole->n_ranks; rank++)
    fits = !__builtin_add_overflow(delivered, traffic.ranks[rank].in_bytes, &delivered) && fits;
  if (!fits)
    args_failed("the bytes that all ranks receive do not fit in 64 bits");
  else if (args->json)
    print_json(whole, &traffic, delivered);
  else
    print_text(whole, &traffic, delivered);
  plan_traffic_free(&traffic);
  return fits ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- bench ---- */

enum { BENCH_RUNS = 5 };

/* Resident memory in KiB. */
static double resident(void)
{
  char line[128] = "";
  FILE *file = fopen("/proc/self/statm", "r"); /* "size resident ...", in pages */

  if (file == NULL || fgets(line, sizeof line, file) == NULL) line[0] = '\0';
  if (file != NULL) fclose(file);
  const char *blank = strchr(line, ' ');
  const long pages = blank != NULL ? strtol(blank, NULL, 10) : 0;
  return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

/* The most that it ever was. */
static double resident_peak(void)
{
  struct rusage usage;

  getrusage(RUSAGE_SELF, &usage);
  return (double)usage.ru_maxrss;
}

/* Let the peak begin anew; proc(5), clear_refs. Where that is not allowed the peak of reading the
 * input may hide that of planning. */
static void forget_peak(void)
{
  FILE *file = fopen("/proc/self/clear_refs", "w");

  malloc_trim(0); /* what reading left behind must not serve for planning */
  if (file == NULL) return;
  fputs("5", file);
  fclose(file);
}

int plan_bench(plan_work work, void *context, int rank)
{
  double ms[BENCH_RUNS];
  double kib = 0;
  xfer_plan_report_data report;

  forget_peak();
  const double before = resident();
  for (int i = 0; i < BENCH_RUNS; i++) {
    const double start = progress_now();

    if (!work(context, rank, &report)) return plan_failed();
    if (interrupt_came()) return args_failed("interrupted");
    ms[i] = (progress_now() - start) * 1e3;
    if (i == 0) kib = resident_peak() - before;
  }
  printf("plan: rank=%d tensors=%" PRIu64 " moves=%" PRIu64 " ms=%.3f mib=%.2f\n", rank,
         report.n_tensors, report.n_moves, progress_median(ms, BENCH_RUNS),
         kib > 0 ? kib / 1024 : 0);
  return EXIT_SUCCESS;
}
