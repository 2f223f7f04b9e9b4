/*
 * The life of a plan: create, bind, commit, start, wait, release.
 */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agree.h"
#include "alloc.h"
#include "error.h"
#include "vec.h"

#define DEFAULT_LINK_BYTES_PER_S UINT64_C(350000000000)
#define DEFAULT_MESSAGE_NS UINT64_C(30000)
#define DEFAULT_TIMEOUT_MS UINT64_C(600000)
#define MAX_WINDOW_BYTES (UINT64_C(1) << 30)

xfi_deadline xfi_run_deadline(const xfer_plan *plan)
{
  return xfi_deadline_after((int64_t)plan->options.timeout_ms);
}

/* ---- create ---- */

/* Zero means default. `device` NULL: a simulation, which plans as a host does. */
static xfer_status fill_options(xfer_plan_options *o, const xfi_device *device)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(o->lane <= XFER_LANE_BROADCAST, XFER_ERR_ARG, "plan option lane is %u", o->lane);
  XFI_CHECK(o->flags == 0, XFER_ERR_UNSUPPORTED, "plan option flags is %#x", o->flags);
  XFI_CHECK(o->reserved == 0, XFER_ERR_UNSUPPORTED, "plan option reserved is %#x", o->reserved);
  XFI_CHECK(o->window_bytes <= MAX_WINDOW_BYTES, XFER_ERR_ARG,
            "plan option window_bytes is %llu, above 1 GiB", (unsigned long long)o->window_bytes);
  XFI_CHECK(o->ranks_per_domain <= INT32_MAX, XFER_ERR_ARG, "plan option ranks_per_domain is %u",
            o->ranks_per_domain);
  XFI_CHECK(o->timeout_ms <= INT64_MAX, XFER_ERR_ARG, "plan option timeout_ms is %llu",
            (unsigned long long)o->timeout_ms);
  if (o->link_bytes_per_s == 0) o->link_bytes_per_s = DEFAULT_LINK_BYTES_PER_S;
  if (o->message_ns == 0) o->message_ns = DEFAULT_MESSAGE_NS;
  if (o->timeout_ms == 0) o->timeout_ms = DEFAULT_TIMEOUT_MS;
  if (o->max_staging_bytes == 0)
    o->max_staging_bytes = device == NULL ? 64 << 20 : device->ops->default_staging_bytes;
  if (o->window_bytes == 0)
    o->window_bytes = device == NULL ? 256 << 10 : device->ops->default_window_bytes;
done:
  return st;
}

static xfi_plan_options moves_options(const xfer_plan_options *o)
{
  return (xfi_plan_options){o->link_bytes_per_s, o->message_ns, o->lane, o->ranks_per_domain};
}

/* The window that keeps the rank with most messages per round under the staging cap: two slots each
 * way. */
static xfer_status set_window(xfer_plan *plan, int sends, int recvs)
{
  const uint64_t cap = plan->options.max_staging_bytes;
  const uint64_t slots = 2 * (uint64_t)(sends + recvs);
  xfer_status st = XFER_OK;
  uint64_t window = plan->options.window_bytes;

  if (window < XFI_SLOT_ALIGN) window = XFI_SLOT_ALIGN; /* as small as it gets */
  if (slots > 0 && window > cap / slots) window = cap / slots;
  window = window / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN;
  XFI_CHECK(window > 0, XFER_ERR_ARG,
            "max_staging_bytes %llu is too small for %d messages in a round",
            (unsigned long long)cap, sends + recvs);
  XFI_CHECK(plan->moves->n_broadcast == 0 || cap >= UINT64_C(4) * XFI_SLOT_ALIGN, XFER_ERR_ARG,
            "max_staging_bytes %llu is too small for a broadcast", (unsigned long long)cap);
  plan->window_bytes = window;
done:
  return st;
}

/* The most messages in a round of any rank. Collective; `mine` is this rank's status so far. */
static xfer_status agree_window(xfer_plan *plan, xfer_status mine)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  int32_t most[2] = {0, 0};
  int32_t(*all)[2] = NULL;

  XFI_TRY(xfi_comm_agree(comm, mine, xfi_run_deadline(plan)));
  xfi_packed_most(&most[0], &most[1], plan->moves);
  all = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *all);
  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  XFI_TRY(comm->ops->all_gather(comm, all, most, sizeof most, xfi_run_deadline(plan)));
  for (int r = 0; r < comm->size; r++) {
    if (all[r][0] + all[r][1] <= most[0] + most[1]) continue;
    most[0] = all[r][0];
    most[1] = all[r][1];
  }
  XFI_TRY(set_window(plan, most[0], most[1]));
done:
  xfi_free(all);
  return st;
}

static xfer_status make_plan(xfer_plan *p, const xfi_agreed *agreed)
{
  const xfi_plan_options options = moves_options(&p->options);
  xfer_status st = XFER_OK;

  p->bindings = xfi_calloc(agreed->n_tensors, sizeof *p->bindings);
  XFI_CHECK(p->bindings != NULL, XFER_ERR_NOMEM, "%zu tensors", agreed->n_tensors);
  XFI_TRY(xfi_plan_create(&p->moves, p->comm->size, p->comm->rank, agreed->tensors,
                          agreed->n_tensors, &options));
  XFI_TRY(p->device->ops->event_create(p->device, &p->started));
  XFI_TRY(p->device->ops->event_create(p->device, &p->finished));
done:
  return st;
}

xfer_status xfi_run_create(xfer_plan **plan, xfi_comm *comm, xfi_device *device,
                           xfer_status checked, const xfer_tensor *tensors, size_t n_tensors,
                           const xfer_plan_options *options)
{
  xfer_status st = XFER_OK;
  xfi_agreed agreed = {NULL, 0};
  xfer_plan *p = xfi_comm_calloc(comm, 1, sizeof *p);

  XFI_CHECK(p != NULL, XFER_ERR_NOMEM, "plan");
  p->options = *options;
  p->comm = comm;
  p->device = device;
  p->changed = true;
  if (checked == XFER_OK) checked = fill_options(&p->options, device);
  if (checked != XFER_OK) p->options.timeout_ms = DEFAULT_TIMEOUT_MS;
  XFI_TRY(xfi_agree_tensors(&agreed, comm, checked, tensors, n_tensors, &p->options,
                            xfi_run_deadline(p)));
  XFI_TRY(agree_window(p, make_plan(p, &agreed)));

  *plan = p;
  p = NULL;
done:
  xfi_agreed_free(&agreed);
  xfi_run_destroy(p);
  return st;
}

xfer_status xfi_run_simulate(xfer_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                             size_t n_tensors, const xfer_plan_options *options)
{
  xfer_status st = XFER_OK;
  xfi_plan_options moves;
  int sends;
  int recvs;
  xfer_plan *p = xfi_calloc(1, sizeof *p);

  XFI_CHECK(p != NULL, XFER_ERR_NOMEM, "plan");
  p->options = *options;
  XFI_TRY(fill_options(&p->options, NULL));
  moves = moves_options(&p->options);
  XFI_TRY(xfi_plan_create(&p->moves, n_ranks, rank, tensors, n_tensors, &moves));
  xfi_packed_most(&sends, &recvs, p->moves);
  XFI_TRY(set_window(p, sends, recvs));

  *plan = p;
  p = NULL;
done:
  xfi_run_destroy(p);
  return st;
}

/* ---- destroy ---- */

/* All that commit made. */
static void drop_lanes(xfer_plan *plan)
{
  if (plan->unawaited && plan->device->ops->event_sync(plan->device, plan->finished,
                                                       xfi_run_deadline(plan)) == XFER_OK)
    plan->unawaited = false;
  if (plan->local != NULL) plan->device->ops->batch_destroy(plan->device, plan->local);
  xfi_direct_destroy(plan->direct, plan->abandoned);
  xfi_pipeline_destroy(plan->pipeline, plan->device,
                       plan->abandoned || (plan->comm != NULL && plan->comm->holds_memory));
  xfi_free(plan->allocations);
  plan->local = NULL;
  plan->direct = NULL;
  plan->pipeline = NULL;
  plan->allocations = NULL;
  plan->n_allocations = 0;
  plan->state = XFI_PLAN_UNCOMMITTED;
  plan->changed = true;
}

static void free_binding(xfi_binding *binding)
{
  if (binding == NULL) return;
  xfi_bound_clear(&binding->src);
  xfi_bound_clear(&binding->dst);
  xfi_free(binding);
}

void xfi_run_destroy(xfer_plan *plan)
{
  if (plan == NULL) return;
  if (plan->state == XFI_PLAN_RUNNING && plan->run_status == XFER_OK)
    plan->device->ops->event_sync(plan->device, plan->finished, xfi_run_deadline(plan));
  if (plan->state == XFI_PLAN_RUNNING && plan->run_status != XFER_OK) plan->abandoned = true;
  if (plan->device != NULL) drop_lanes(plan);
  for (size_t t = 0; plan->bindings != NULL && plan->moves != NULL && t < plan->moves->n_tensors;
       t++)
    free_binding(plan->bindings[t]);
  xfi_free(plan->bindings);
  if (plan->device != NULL && plan->started != NULL)
    plan->device->ops->event_destroy(plan->device, plan->started);
  if (plan->device != NULL && plan->finished != NULL)
    plan->device->ops->event_destroy(plan->device, plan->finished);
  xfi_plan_destroy(plan->moves);
  xfi_free(plan);
}

/* ---- bind ---- */

/* The shape of this rank's part of one side; false: it has none, or an empty one. */
static bool part_shape(int64_t *shape, const xfer_layout *layout, bool in_mesh,
                       const xfi_place *place)
{
  bool filled = in_mesh;

  for (int d = 0; in_mesh && d < layout->n_dims; d++) {
    shape[d] = xfi_dim_length(&layout->dims[d], place->part[d]);
    filled = filled && shape[d] > 0;
  }
  return filled;
}

static xfer_status bind_side(xfi_bound *bound, const xfer_view *view, const xfer_layout *layout,
                             bool in_mesh, const xfi_place *place, const char *name,
                             const char *side)
{
  int64_t shape[XFER_MAX_DIMS] = {0};
  char what[160];

  if (!part_shape(shape, layout, in_mesh, place)) return XFER_OK;
  if (view == NULL) {
    xfi_bound_clear(bound);
    return XFER_OK;
  }
  snprintf(what, sizeof what, "tensor \"%.100s\", %s view", name, side);
  return xfi_bound_set(bound, view, shape, layout->n_dims, layout->elem_bytes, what);
}

static bool is_same_binding(const xfi_binding *a, const xfi_binding *b)
{
  return a != NULL && xfi_bound_equal(&a->src, &b->src) && xfi_bound_equal(&a->dst, &b->dst);
}

xfer_status xfi_run_bind(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                         const xfer_view *dst_view)
{
  xfer_status st = XFER_OK;
  const xfi_class *cls;
  const char *name;
  xfi_binding *fresh = NULL;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan cannot be bound");
  XFI_CHECK(plan->state != XFI_PLAN_RUNNING, XFER_ERR_STATE,
            "a run is in flight; wait for it before binding");
  XFI_CHECK(tensor < plan->moves->n_tensors, XFER_ERR_ARG, "tensor %zu of %zu", tensor,
            plan->moves->n_tensors);
  cls = xfi_plan_class(plan->moves, tensor);
  name = plan->moves->tensors[tensor].name;
  fresh = xfi_calloc(1, sizeof *fresh);
  XFI_CHECK(fresh != NULL, XFER_ERR_NOMEM, "tensor \"%s\"", name);
  XFI_TRY(bind_side(&fresh->src, src_view, cls->src, cls->in_src, &cls->src_place, name, "source"));
  XFI_TRY(bind_side(&fresh->dst, dst_view, cls->dst, cls->in_dst, &cls->dst_place, name,
                    "destination"));
  plan->state = XFI_PLAN_UNCOMMITTED;
  if (is_same_binding(plan->bindings[tensor], fresh))
    goto done; /* the next commit has nothing to do */
  free_binding(plan->bindings[tensor]);
  plan->bindings[tensor] = fresh;
  fresh = NULL;
  plan->changed = true;
done:
  free_binding(fresh);
  return st;
}

/* ---- commit ---- */

/* Every part that is not empty is bound. */
static xfer_status check_bound(const xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    const xfi_class *cls = xfi_plan_class(plan->moves, t);
    const xfi_binding *b = plan->bindings[t];
    const char *name = plan->moves->tensors[t].name;
    int64_t shape[XFER_MAX_DIMS];

    XFI_CHECK(!part_shape(shape, cls->src, cls->in_src, &cls->src_place) ||
                  (b != NULL && b->src.is_set),
              XFER_ERR_STATE, "tensor %zu \"%s\": the source part of rank %d is not bound", t, name,
              plan->moves->rank);
    XFI_CHECK(!part_shape(shape, cls->dst, cls->in_dst, &cls->dst_place) ||
                  (b != NULL && b->dst.is_set),
              XFER_ERR_STATE, "tensor %zu \"%s\": the destination part of rank %d is not bound", t,
              name, plan->moves->rank);
  }
done:
  return st;
}

static xfer_status check_disjoint(const xfer_plan *plan)
{
  const size_t n_tensors = plan->moves->n_tensors;
  xfer_status st = XFER_OK;
  const xfi_bound **bounds = xfi_calloc(n_tensors, sizeof *bounds);
  const char **names = xfi_calloc(n_tensors, sizeof *names);
  int *elem_bytes = xfi_calloc(n_tensors, sizeof *elem_bytes);
  size_t n = 0;

  XFI_CHECK(bounds != NULL && names != NULL && elem_bytes != NULL, XFER_ERR_NOMEM, "%zu tensors",
            n_tensors);
  for (size_t t = 0; t < n_tensors; t++) {
    if (plan->bindings[t] == NULL || !plan->bindings[t]->dst.is_set) continue;
    bounds[n] = &plan->bindings[t]->dst;
    names[n] = plan->moves->tensors[t].name;
    elem_bytes[n++] = xfi_plan_class(plan->moves, t)->dst->elem_bytes;
  }
  XFI_TRY(xfi_bounds_check_disjoint(bounds, names, elem_bytes, n));
done:
  xfi_free(bounds);
  xfi_free(names);
  xfi_free(elem_bytes);
  return st;
}

static xfer_status note_allocation(xfer_plan *plan, size_t *capacity, const void *pointer)
{
  xfer_status st = XFER_OK;
  xfi_allocation found;

  XFI_TRY(plan->device->ops->find_allocation(plan->device, pointer, &found));
  if (found.id == 0) return XFER_OK; /* this device cannot tell one allocation from the next */
  if (plan->n_allocations > 0 && plan->allocations[plan->n_allocations - 1].id == found.id)
    return XFER_OK; /* as views of one buffer tend to be: fewer to sort */
  XFI_TRY(xfi_vec_reserve(&plan->allocations, capacity, plan->n_allocations + 1,
                          sizeof *plan->allocations));
  plan->allocations[plan->n_allocations++] = found;
done:
  return st;
}

static int by_id(const void *a, const void *b)
{
  const xfi_allocation *x = a;
  const xfi_allocation *y = b;

  return (x->id > y->id) - (x->id < y->id);
}

/* Which allocations bound memory lies in, each once, for run to look at again. Also finds memory
 * that copies cannot use. */
static xfer_status note_allocations(xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  size_t capacity = 0;
  size_t n = 0; /* the last one kept */

  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    for (int side = 0; plan->bindings[t] != NULL && side < 2; side++) {
      const xfi_bound *b = side == 0 ? &plan->bindings[t]->src : &plan->bindings[t]->dst;

      for (int64_t p = 0; b->is_set && p < b->n_pieces; p++)
        XFI_TRY(note_allocation(plan, &capacity, xfi_bound_piece(b, p)));
    }
  }
  if (plan->n_allocations == 0) goto done;
  qsort(plan->allocations, plan->n_allocations, sizeof *plan->allocations, by_id);
  for (size_t i = 1; i < plan->n_allocations; i++)
    if (plan->allocations[i].id != plan->allocations[n].id)
      plan->allocations[++n] = plan->allocations[i];
  plan->n_allocations = n + 1;
done:
  return st;
}

/* The part of commit that needs no other rank. */
static xfer_status commit_local(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_TRY(check_bound(plan));
  XFI_TRY(check_disjoint(plan));
  XFI_TRY(note_allocations(plan));
  XFI_TRY(xfi_local_create(&plan->local, plan));
done:
  return st;
}

/* Has any rank bound something since the last commit? Collective. */
static xfer_status any_changed(bool *changed, const xfer_plan *plan, xfer_status mine)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  unsigned char said[2] = {plan->changed, mine != XFER_OK};
  unsigned char(*all)[2] = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *all);
  bool failed = false;

  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  XFI_TRY(comm->ops->all_gather(comm, all, said, sizeof said, xfi_run_deadline(plan)));
  *changed = false;
  for (int r = 0; r < comm->size; r++) {
    *changed = *changed || all[r][0] != 0;
    failed = failed || all[r][1] != 0;
  }
  if (failed) st = xfi_comm_agree(comm, mine, xfi_run_deadline(plan)); /* for the text */
done:
  xfi_free(all);
  return st;
}

static xfer_status check_committable(const xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->state != XFI_PLAN_RUNNING, XFER_ERR_STATE,
            "a run is in flight; wait for it before committing");
done:
  return st;
}

/* Lanes in the order in which they take what is left: local, direct, pipeline. */
static xfer_status make_lanes(xfer_plan *plan)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;

  drop_lanes(plan);
  plan->abandoned = false; /* nobody knows of what is made now */
  plan->epoch = 0;
  XFI_TRY(xfi_comm_agree(comm, commit_local(plan), xfi_run_deadline(plan)));
  XFI_TRY(xfi_direct_create(&plan->direct, plan));
  XFI_TRY(xfi_comm_agree(comm, xfi_pipeline_create(&plan->pipeline, plan), xfi_run_deadline(plan)));
  if (comm->ops->warm_up != NULL) {
    st = comm->ops->warm_up(comm, xfi_run_deadline(plan));
    XFI_TRY(xfi_comm_agree(comm, st, xfi_run_deadline(plan)));
  }
done:
  return st;
}

xfer_status xfi_run_commit(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan cannot be committed");
  XFI_TRY(xfi_run_commit_with(plan, check_committable(plan)));
done:
  return st;
}

xfer_status xfi_run_commit_with(xfer_plan *plan, xfer_status mine)
{
  xfer_status st = XFER_OK;
  bool changed = true;

  XFI_TRY(any_changed(&changed, plan, mine));
  if (changed) st = make_lanes(plan);
  if (st != XFER_OK) {
    drop_lanes(plan);
    goto done;
  }
  plan->changed = false;
  plan->state = XFI_PLAN_COMMITTED;
done:
  return st;
}

/* ---- run ---- */

/* Is the memory that was bound still the same memory? */
static xfer_status check_allocations(const xfer_plan *plan)
{
  const xfi_device_ops *dev = plan->device->ops;
  xfer_status st = XFER_OK;

  if (dev->find_changed == NULL) return XFER_OK;
  const size_t i = dev->find_changed(plan->device, plan->allocations, plan->n_allocations);
  XFI_CHECK(i == plan->n_allocations, XFER_ERR_STATE,
            "memory at %p was freed or remapped since the commit; bind and commit again",
            plan->allocations[i].base);
done:
  return st;
}

static xfer_status enqueue(xfer_plan *plan, xfer_stream stream, xfi_deadline deadline)
{
  const xfi_device_ops *dev = plan->device->ops;
  xfer_status st = XFER_OK;

  XFI_TRY(dev->event_record(plan->device, plan->started, stream));
  XFI_TRY(xfi_direct_start(plan->direct, plan, stream, deadline));
  if (plan->local != NULL) XFI_TRY(dev->batch_launch(plan->device, plan->local, stream));
  XFI_TRY(xfi_pipeline_start(plan->pipeline, plan, stream, deadline));
  XFI_TRY(xfi_direct_finish(plan->direct, plan, stream, deadline));
  XFI_TRY(dev->event_record(plan->device, plan->finished, stream));
done:
  return st;
}

xfer_status xfi_run_start(xfer_plan *plan, uint64_t version, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->state != XFI_PLAN_UNCOMMITTED, XFER_ERR_STATE, "the plan is not committed");
  XFI_CHECK(plan->state != XFI_PLAN_RUNNING, XFER_ERR_STATE,
            "a run is in flight; wait for it before the next");
  XFI_CHECK(version > plan->version, XFER_ERR_STATE, "version %llu after version %llu",
            (unsigned long long)version, (unsigned long long)plan->version);
  XFI_TRY(plan->device->ops->stream_check(plan->device, stream));
  XFI_TRY(check_allocations(plan));
  plan->epoch++;
  plan->run_version = version;
  plan->torn = true; /* until wait says otherwise */
  plan->state = XFI_PLAN_RUNNING;
  st = plan->run_status = enqueue(plan, stream, xfi_run_deadline(plan));
  if (st != XFER_OK) xfi_direct_fail(plan->direct, plan->moves->rank);
done:
  return st;
}

xfer_status xfi_run_once(xfer_plan *plan, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  if (plan->unawaited)
    XFI_TRY(plan->device->ops->stream_wait(plan->device, stream, plan->finished));
  st = xfi_run_start(plan, plan->version + 1, stream);
  if (st != XFER_OK) { /* no agreement follows: what the lanes have is of no more use to anybody */
    if (plan->state != XFI_PLAN_RUNNING) xfi_direct_fail(plan->direct, plan->moves->rank);
    plan->changed = true;
    plan->abandoned = true;
  }
  if (plan->state == XFI_PLAN_RUNNING) plan->state = XFI_PLAN_COMMITTED;
  plan->unawaited = st == XFER_OK;
  if (st == XFER_OK) plan->version = plan->run_version;
done:
  return st;
}

/* After a failed run: flags are no longer in step, so the next run needs a commit. Where not even a
 * last gathering works, some rank may still be in the run and touch our memory. */
static void leave_run(xfer_plan *plan, xfi_deadline deadline)
{
  char why[XFI_ERROR_BYTES];

  snprintf(why, sizeof why, "%s", xfi_last_error()); /* of the run, not of what follows */

  plan->state = XFI_PLAN_UNCOMMITTED;
  plan->changed = true;
  plan->abandoned = xfi_comm_agree(plan->comm, XFER_OK, deadline) != XFER_OK;
  xfi_set_error("%s", why);
}

xfer_status xfi_run_wait(xfer_plan *plan, uint64_t timeout_ms)
{
  const xfi_deadline deadline = timeout_ms == 0 || timeout_ms > INT64_MAX
                                    ? xfi_run_deadline(plan)
                                    : xfi_deadline_after((int64_t)timeout_ms);
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->state == XFI_PLAN_RUNNING, XFER_ERR_STATE, "no run is in flight");
  st = plan->run_status;
  if (st == XFER_OK) st = plan->device->ops->event_sync(plan->device, plan->finished, deadline);
  if (st == XFER_ERR_TIMEOUT) xfi_direct_name_late(plan->direct, plan);
  plan->state = XFI_PLAN_COMMITTED;
  st = xfi_comm_agree(plan->comm, st, deadline);
  if (st != XFER_OK) leave_run(plan, deadline);
  if (st != XFER_OK) goto done;
  plan->version = plan->run_version;
  plan->torn = false;
done:
  return st;
}

xfer_status xfi_run_release(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan has nothing to release");
  st = check_committable(plan);
  XFI_TRY(xfi_comm_agree(plan->comm, st, xfi_run_deadline(plan)));
  drop_lanes(plan);
  XFI_TRY(
      xfi_comm_agree(plan->comm, XFER_OK, xfi_run_deadline(plan))); /* nobody maps us any more */
done:
  return st;
}

/* ---- report ---- */

void xfi_run_report(const xfer_plan *plan, xfer_plan_report_data *r)
{
  const xfi_plan *m = plan->moves;

  r->n_tensors = m->n_tensors;
  r->n_classes = m->n_classes;
  r->n_moves = m->selfs.n_moves + m->recvs.n_moves + m->sends.n_moves;
  r->payload_bytes = m->payload_bytes;
  r->in_bytes = m->in_bytes;
  r->self_bytes = m->self_bytes;
  r->zero_bytes = m->zero_bytes;
  r->wire_bytes = m->in_bytes - m->self_bytes - m->zero_bytes;
  r->out_bytes = m->out_bytes;
  r->n_send_peers = m->sends.n_peers;
  r->n_recv_peers = m->recvs.n_peers;
  r->broadcast_tensors = m->n_broadcast;
  r->window_bytes = plan->window_bytes;
  r->bound_bytes = r->wire_bytes > r->out_bytes ? r->wire_bytes : r->out_bytes;
  r->predicted_ns =
      (uint64_t)((double)r->bound_bytes / (double)plan->options.link_bytes_per_s * 1e9) +
      (r->n_send_peers + r->n_recv_peers) * plan->options.message_ns;
  r->committed_version = plan->version;
  r->torn = plan->torn ? 1 : 0;
  if (plan->direct != NULL) r->direct_bytes = xfi_direct_bytes(plan->direct);
  if (plan->pipeline == NULL) return;
  r->packed_bytes = plan->pipeline->sent_bytes;
  r->n_rounds = plan->pipeline->n_rounds;
  r->staging_bytes = plan->pipeline->staging_bytes;
}
