/*
 * Which ranks belong together in Megatron's dense (tp-cp-dp-pp) and expert (etp-ep-edp-pp) grids,
 * the first varying fastest: 35 configurations of Megatron-LM's own tests. `hash` is the first 16
 * hex digits of the SHA-256 of the compact, key-sorted JSON of the groups, {"cp":[[..],..],..};
 * groups are ordered by their remaining coordinates, slowest first.
 */
#ifndef RANK_ORDERS_H
#define RANK_ORDERS_H

typedef struct rank_order {
  int world, tp, cp, dp, pp, etp, ep, edp;
  const char *hash;
} rank_order;

/* clang-format off */
static const rank_order rank_orders[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, "19e52b4f0bc78911"},
    {8, 8, 1, 1, 1, 8, 1, 1, "822681ee62e236ec"},
    {8, 2, 1, 2, 2, 2, 1, 2, "5c4d1a8caf509c6b"},
    {8, 2, 1, 1, 4, 2, 1, 1, "252040aa0c0cbe7e"},
    {24, 8, 1, 1, 3, 8, 1, 1, "2318bfa2fc938412"},
    {32, 2, 1, 4, 4, 2, 1, 4, "6ce013717ed8af3f"},
    {64, 8, 1, 1, 8, 8, 1, 1, "7c4d9e06e80e89fd"},
    {64, 2, 1, 32, 1, 2, 4, 8, "67f1bd906eee4d27"},
    {64, 2, 2, 8, 2, 2, 4, 4, "287dfb09ba11222b"},
    {64, 2, 4, 8, 1, 2, 8, 4, "aa1c2bc3e84e9643"},
    {64, 2, 2, 8, 2, 2, 8, 2, "1d214252b1b8d60d"},
    {128, 4, 1, 4, 8, 4, 1, 4, "a318d928fbbfb82f"},
    {128, 4, 1, 4, 8, 4, 4, 1, "beb2338d38147bba"},
    {128, 4, 4, 1, 8, 4, 1, 4, "e528173e4159c227"},
    {128, 8, 1, 2, 8, 8, 1, 2, "fe3faa42114e0576"},
    {128, 4, 1, 4, 8, 4, 1, 4, "a318d928fbbfb82f"},
    {128, 8, 1, 2, 8, 8, 1, 2, "fe3faa42114e0576"},
    {256, 4, 1, 8, 8, 4, 1, 8, "57c053af9ac544e8"},
    {256, 8, 1, 4, 8, 8, 1, 4, "51a130cb82562ddd"},
    {256, 4, 1, 8, 8, 4, 4, 2, "081a4aad04ce5065"},
    {256, 8, 4, 1, 8, 8, 1, 4, "aa9e0c4817c7f41a"},
    {512, 4, 8, 8, 2, 4, 8, 8, "f42f27d208723ef2"},
    {512, 4, 1, 16, 8, 4, 1, 16, "436c260ac3e7e34f"},
    {512, 8, 1, 8, 8, 8, 1, 8, "28d24cd20bf43217"},
    {768, 4, 1, 24, 8, 4, 1, 24, "f4ebc905234c7564"},
    {1024, 4, 8, 16, 2, 4, 8, 16, "90ee9a49c8385ed2"},
    {1024, 4, 1, 32, 8, 4, 1, 32, "dc212e98d3e18193"},
    {2048, 4, 1, 64, 8, 4, 1, 64, "f418eb1adcc93b33"},
    {2528, 4, 1, 79, 8, 4, 1, 79, "ff5452a68276ed3e"},
    {3072, 4, 1, 96, 8, 4, 1, 96, "a6bac0236bd260bd"},
    {4096, 4, 1, 128, 8, 4, 1, 128, "26cb8081f2af0b8b"},
    {6144, 4, 1, 192, 8, 4, 1, 192, "77d427d7d926e2e5"},
    {8192, 4, 1, 256, 8, 4, 1, 256, "59903431b22fa8e5"},
    {10240, 4, 1, 320, 8, 4, 1, 320, "9b717d009dd6ca75"},
    {10752, 4, 1, 336, 8, 4, 1, 336, "546e164c8d6a8e82"},
};
/* clang-format on */

#endif
