/*
 * A rank is done when its slowest way is: what it gets or sends within its domain at the link's
 * speed, beyond it at the NIC's, copies in its own memory; then what ranks of a domain relay.
 *
 * The constants are fitted to the rows of docs/performance.md, on H200 and H100 GPUs of one host;
 * "What if" there has each row beside its prediction. NIC and relays have the machine's figures and
 * nothing else: no such row was measured.
 */
#include "predict.h"

#include <inttypes.h>
#include <stdio.h>

/* To begin; the host's look at each allocation. */
#define START_SECONDS 10e-6
#define ALLOCATION_SECONDS 0.33e-6
/* What the link loses to each further rank that data comes from, of which no more than four were
 * measured. */
#define FURTHER_PEER 0.029
#define MOST_PEERS 4.0
/* Sending and receiving at once, of the smaller one's time. */
#define BOTH_WAYS 0.10
/* NCCL's broadcast, and the packed lane, of the link's speed; the packed lane's begin, and more for
 * each rank that data comes from. */
#define BROADCAST_SPEED 0.914
#define PACKED_SPEED 0.94
#define PACKED_START_SECONDS 1e-6
#define PACKED_PEER_SECONDS 5e-6
#define PACKED_FURTHER_PEER 0.076
#define PACKED_BOTH_WAYS 0.72
/* A copy in one GPU's memory, read plus written. */
#define MEMORY_BYTES_PER_S 3.9e12

static double larger(double a, double b)
{
  return a > b ? a : b;
}

static double smaller(double a, double b)
{
  return a < b ? a : b;
}

void predict_add(rank_load *loads, const xfer_traffic *pair, const machine *m)
{
  rank_load *src = &loads[pair->src_rank];
  rank_load *dst = &loads[pair->dst_rank];
  const double one_by_one = (double)(pair->n_bytes - pair->relayed_bytes - pair->broadcast_bytes);

  if (src == dst) {
    dst->self += (double)pair->n_bytes;
    return;
  }
  dst->broadcast_in += (double)pair->broadcast_bytes;
  src->broadcast_out = larger(src->broadcast_out, (double)pair->broadcast_bytes); /* sent once */
  if (pair->src_rank / m->domain != pair->dst_rank / m->domain)
    dst->broadcast_beyond += (double)pair->broadcast_bytes;
  dst->relay_in += (double)pair->relayed_bytes;
  src->relay_out += (double)pair->relayed_bytes;
  if (pair->src_rank / m->domain == pair->dst_rank / m->domain) {
    dst->link_in += one_by_one;
    src->link_out += one_by_one;
    dst->link_in_squares += one_by_one * one_by_one;
  } else {
    dst->nic_in += one_by_one;
    src->nic_out += one_by_one;
  }
}

/* Predicts the time on the link, without the start of a run. */
static double link_seconds(const rank_load *l, const machine *m, double peers)
{
  const double speed = 1e9 * (double)m->link_gbs;
  const double in = l->link_in / speed;
  const double out = l->link_out / speed;
  const double most = larger(in, out);

  if (m->packed)
    return (most * (1 + PACKED_FURTHER_PEER * (peers - 1)) + PACKED_BOTH_WAYS * smaller(in, out)) /
           PACKED_SPEED;
  return most * (1 + FURTHER_PEER * (peers - 1)) + BOTH_WAYS * smaller(in, out);
}

double predict_seconds(const rank_load *l, const machine *m, double allocations)
{
  const double peers = l->link_in_squares > 0
                           ? smaller(l->link_in * l->link_in / l->link_in_squares, MOST_PEERS)
                           : 1;
  const double link_speed = 1e9 * (double)m->link_gbs;
  const double nic_speed = 1e9 * (double)m->nic_gbs;
  /* One root broadcasts at a time, so what a rank sends comes on top of what it gets. That comes to
   * a domain once, over the NICs of all its GPUs. */
  const double broadcast =
      larger((l->broadcast_in + l->broadcast_out) / (BROADCAST_SPEED * link_speed),
             l->broadcast_beyond / (nic_speed * (double)m->domain));
  const double link = link_seconds(l, m, peers) + broadcast;
  const double nic = larger(l->nic_in, l->nic_out) / nic_speed;
  const double memory = 2 * l->self / MEMORY_BYTES_PER_S;
  const double relay = larger(l->relay_in, l->relay_out) / link_speed;
  const double begin =
      m->packed ? PACKED_START_SECONDS + PACKED_PEER_SECONDS * peers : START_SECONDS;

  return begin + ALLOCATION_SECONDS * allocations + larger(larger(link, nic), memory) + relay;
}

bool predict_is_guess(const rank_load *l)
{
  return l->nic_in + l->nic_out + l->relay_in + l->relay_out + l->broadcast_beyond > 0;
}

void predict_print_machine(const machine *m, bool guessed)
{
  printf("\npredicted: %" PRId64 " GPUs a domain, %" PRId64
         " GB/s of each to others of it, %" PRId64 " GB/s beyond (--domain, --link, --nic)%s\n",
         m->domain, m->link_gbs, m->nic_gbs, m->packed ? ", packed lane" : "");
  if (guessed)
    printf("* what crosses between domains, or is relayed in one, is taken from these figures "
           "alone: no such transfer was measured\n");
}
