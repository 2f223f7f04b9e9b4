/*
 * One tensor, one call: the plan API with a plan that the comm keeps.
 *
 * Ranks first settle which tensor they mean, since one that was not told a layout cannot find the
 * plan by itself. Every rank keeps the same plans, because every rank made the same calls. A rank
 * that does find one begins its commit, and to send, before it has heard of the others: where all
 * have found the same, one all-gather settles both, and with it all that fits is there.
 */
#include <string.h>

#include <xxhash.h>

#include "error.h"
#include "object.h"
#include "trace.h"

/* What a rank was given. A digest of two zeros: nothing. */
typedef struct given {
  uint64_t src[2];
  uint64_t dst[2];
  int32_t own;    /* 1: of the source, 2: of the destination it has its own boxes only */
  int32_t mapped; /* 1: its memory can stay mapped */
  int32_t status; /* what its own checks came to */
  int32_t reserved;
  xfi_commit_word commit; /* of the plan that it found; its number is NO_PLAN: none */
} given;

#define NO_PLAN UINT64_MAX
static const uint64_t nothing[2] = {0, 0};

static bool is_own(const xfer_layout *layout)
{
  return layout != NULL && layout->is_own;
}

static bool is_same(const uint64_t a[2], const uint64_t b[2])
{
  return a[0] == b[0] && a[1] == b[1];
}

/* One digest of what all ranks have each. `at` is that of one side in a given. */
static void digest_of_all(uint64_t digest[2], const given *all, int n, size_t at)
{
  XXH3_state_t state;
  XXH128_hash_t hash;

  XXH3_128bits_reset(&state);
  for (int r = 0; r < n; r++)
    XXH3_128bits_update(&state, (const char *)&all[r] + at, sizeof nothing);
  hash = XXH3_128bits_digest(&state);
  digest[0] = hash.low64;
  digest[1] = hash.high64;
}

/* What the ranks say. */
typedef struct heard {
  given *all;             /* [size of the comm] */
  xfi_commit_word *words; /* likewise; of the commit, if all have begun that of the plan found */
} heard;

/* Room for it, which stays the comm's. */
static xfer_status find_room(heard *room, xfer_comm *comm)
{
  const size_t size = (size_t)comm->transport->size;
  xfer_status st = XFER_OK;

  if (comm->heard == NULL)
    comm->heard = xfi_comm_calloc(comm->transport, size, sizeof *room->all + sizeof *room->words);
  XFI_CHECK(comm->heard != NULL, XFER_ERR_NOMEM, "%zu ranks", size);
  room->all = comm->heard;
  room->words = (xfi_commit_word *)(room->all + size);
done:
  return st;
}

/* The digests that all ranks mean, if none has failed: of each side, those of the lowest rank that
 * knows it. A rank that was given something else finds no kept plan and lets xfi_run_create() say
 * how it differs. *begun: all have begun the commit of the plan found.
 */
static xfer_status settle(given *all_mean, bool *differ, const heard *room, bool *begun,
                          const xfer_comm *of, const given *mine, const xfi_kept *found,
                          xfi_deadline deadline)
{
  xfi_comm *comm = of->transport;
  xfer_status st = XFER_OK;
  bool failed = false;
  given *all = room->all;
  xfi_commit_word *words = room->words;

  XFI_TRY(comm->ops->all_gather(comm, all, mine, sizeof *mine, deadline));
  *begun = found != NULL;
  for (int r = 0; r < comm->size; r++) {
    words[r] = all[r].commit;
    *begun = *begun && words[r].plan == mine->commit.plan;
  }
  if (found != NULL && !xfi_commit_leads_on(words, comm->size)) xfi_commit_take_back(found->plan);
  for (int r = 0; r < comm->size; r++)
    failed = failed || all[r].status != XFER_OK;
  if (failed) XFI_TRY(xfi_comm_agree(comm, (xfer_status)mine->status, deadline)); /* for the text */
  memset(all_mean, 0, sizeof *all_mean);
  all_mean->mapped = 1;
  *differ = false;
  for (int r = 0; r < comm->size; r++) {
    all_mean->mapped &= all[r].mapped;
    if (is_same(all_mean->src, nothing)) memcpy(all_mean->src, all[r].src, sizeof nothing);
    if (is_same(all_mean->dst, nothing)) memcpy(all_mean->dst, all[r].dst, sizeof nothing);
  }
  for (int r = 0; r < comm->size; r++)
    all_mean->own |= all[r].own;
  for (int r = 0; r < comm->size; r++)
    *differ = *differ ||
              (!is_same(all[r].src, nothing) && !is_same(all[r].src, all_mean->src) &&
               (all_mean->own & 1) == 0) ||
              (!is_same(all[r].dst, nothing) && !is_same(all[r].dst, all_mean->dst) &&
               (all_mean->own & 2) == 0);
  if ((all_mean->own & 1) != 0) digest_of_all(all_mean->src, all, comm->size, offsetof(given, src));
  if ((all_mean->own & 2) != 0) digest_of_all(all_mean->dst, all, comm->size, offsetof(given, dst));
done:
  return st;
}

static xfi_kept *find_kept(xfer_comm *comm, const given *key)
{
  for (int i = 0; i < comm->n_kept; i++) {
    xfi_kept *k = &comm->kept[i];

    if (k->plan != NULL && k->plan->ends == NULL && is_same(k->src, key->src) &&
        is_same(k->dst, key->dst) && k->mapped == (key->mapped != 0))
      return k;
  }
  return NULL;
}

static xfer_status bind(const xfi_kept *k, const xfer_view *src_view, const xfer_view *dst_view,
                        xfer_stream stream)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_run_follow(k->plan, stream));
  st = xfi_run_bind(k->plan, 0, src_view, dst_view);
done:
  return st;
}

static xfer_status redistribute(xfer_comm *comm, const xfer_tensor *tensor,
                                const xfer_view *src_view, const xfer_view *dst_view,
                                xfer_stream stream)
{
  const xfi_deadline deadline = xfi_comm_deadline(comm);
  xfer_status st = XFER_OK;
  xfer_plan_options options;
  given mine = {.commit = {.plan = NO_PLAN}};
  given key;
  bool differ = false;
  bool begun = false;
  xfi_kept *found = NULL;
  xfi_kept *k = NULL;
  heard room;

  XFI_TRY(find_room(&room, comm));
  if (tensor->src != NULL) memcpy(mine.src, tensor->src->digest, sizeof mine.src);
  if (tensor->dst != NULL) memcpy(mine.dst, tensor->dst->digest, sizeof mine.dst);
  mine.own = (is_own(tensor->src) ? 1 : 0) | (is_own(tensor->dst) ? 2 : 0);
  mine.mapped = xfi_comm_is_registered(comm, src_view) && xfi_comm_is_registered(comm, dst_view);
  mine.status = xfi_kept_check(comm, stream);
  if (mine.status == XFER_OK && mine.own == 0) found = find_kept(comm, &mine);
  if (found != NULL) {
    mine.commit = xfi_commit_begin(found->plan, bind(found, src_view, dst_view, stream));
    xfi_commit_send(found->plan, &mine.commit);
  }
  XFI_TRY(settle(&key, &differ, &room, &begun, comm, &mine, found, deadline));
  k = differ ? NULL : find_kept(comm, &key);
  begun = begun && k == found;
  if (k == NULL) {
    k = xfi_kept_make(&options, comm, key.src, key.dst, key.mapped != 0);
    XFI_TRY(xfi_run_create(&k->plan, &comm->plans, XFER_OK, tensor, 1, &options));
  }
  k->used = ++comm->n_calls;
  if (begun)
    XFI_TRY(xfi_commit_end(k->plan, room.words, deadline));
  else
    XFI_TRY(xfi_run_commit_with(k->plan, bind(k, src_view, dst_view, stream)));
  st = xfi_kept_run(comm, k, stream);
done:
  return st;
}

xfer_status xfer_redistribute(xfer_comm *comm, const xfer_layout *src_layout,
                              const xfer_view *src_view, const xfer_layout *dst_layout,
                              const xfer_view *dst_view, xfer_stream stream)
{
  const xfer_tensor tensor = {"tensor", src_layout, dst_layout, 0};
  xfer_status st = XFER_OK;
  xfi_entered before;
  xfi_span span;

  XFI_NEED(comm);
  xfi_device_enter(comm->device, &before);
  span = xfi_span_begin(XFI_SYS_RUN, comm->transport->rank, XFI_TRACK_CALLS, "xfer_redistribute");
  comm->transport->inside = XFI_INSIDE_REDISTRIBUTE;
  st = redistribute(comm, &tensor, src_view, dst_view, stream);
  xfi_span_end(&span, st, "%d ranks", comm->transport->size);
  xfi_device_leave(comm->device, &before);
done:
  return st;
}
