/* SPDX-License-Identifier: Apache-2.0 */
/* Options of ep_dispatch_perf and ep_combine_perf, who sends what to whom, and the bytes of it. */
#ifndef EP_OPTIONS_H
#define EP_OPTIONS_H

#include <cuda_runtime_api.h>
#include "common.h"
#include <nccl_ep.h>
#include <nccl_ep/ext.h>
#include <errno.h>
#include <map>
#include <math.h>
#include <mutex>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#define EP_MAX_TOPK 32
#define EP_EXACT_TOPK 8 /* sums of so many numbers are exact in each format */

/*
 * How rows travel. Multiples of `unit`, up to `most` of them, come out as they were: their scales
 * are powers of two.
 */
struct EpFormat {
  const char* name;
  ncclEpDispQuant_t dispatch;
  ncclEpCombQuant_t combine;
  ncclDataType_t tokens, scales;
  int perByte, group, scaleSize; /* elements of a byte; that share a scale; bytes of one */
  int multiple;                  /* of HIDDEN */
  int most;
  float unit;
};

#define EP_NVFP4_SCALE 448.0f /* of rows whose largest number is 6 */

enum {
  EP_NONE,
  EP_FP8,
  EP_MXFP8,
  EP_NVFP4,
  EP_FORMATS
};

static const EpFormat EpFormats[EP_FORMATS] = {
  { "none", NCCL_EP_DISP_QUANT_NONE, NCCL_EP_COMB_QUANT_NONE, ncclBfloat16, ncclUint8, 1, 1, 0, 1,
    7, 1 },
  { "fp8", NCCL_EP_DISP_QUANT_DS_FP8E3M4, NCCL_EP_EXT_COMB_QUANT_FP8, ncclFloat8e4m3, ncclFloat32,
    1, 128, 4, 128, 7, 0.5f },
  { "mxfp8", NCCL_EP_EXT_DISP_QUANT_MXFP8, NCCL_EP_COMB_QUANT_MXFP8, ncclFloat8e4m3, ncclUint8, 1,
    32, 1, 128, 2, 1 },
  { "nvfp4", NCCL_EP_EXT_DISP_QUANT_NVFP4, NCCL_EP_COMB_QUANT_NVFP4, ncclFloat4x2, ncclFloat8e4m3,
    2, 16, 1, 64, 2, 3 },
};

struct EpOptions {
  long hidden, topk, experts, seed, sms, windows;
  int format; /* of the call that is measured */
  double imbalance;
  bool ht;
  ncclEpLayout_t layout;
  char error[256]; /* not empty: a variable is unusable */
};

/* ---- the environment ---- */

static void EpReadNumber(EpOptions* o, const char* name, long least, long most, long* value) {
  const char* text = getenv(name);
  char* end;
  long number;

  if (!text || !*text) {
    return;
  }
  errno = 0;
  number = strtol(text, &end, 10);
  if (errno || *end || number < least || number > most) {
    snprintf(o->error, sizeof(o->error), "%s=%.40s is not a number from %ld to %ld", name, text,
             least, most);
    return;
  }
  *value = number;
}

static void EpReadImbalance(EpOptions* o) {
  const char* text = getenv("NCCL_TESTS_EP_IMBALANCE");
  char* end;

  if (!text || !*text) {
    return;
  }
  o->imbalance = strtod(text, &end);
  if (*end || !(o->imbalance >= 0 && o->imbalance <= 1)) {
    snprintf(o->error, sizeof(o->error), "NCCL_TESTS_EP_IMBALANCE=%.40s is not from 0 to 1", text);
  }
}

static void EpReadMode(EpOptions* o) {
  const char* mode = getenv("NCCL_TESTS_EP_MODE");
  const char* layout = getenv("NCCL_TESTS_EP_LAYOUT");

  mode = mode && *mode ? mode : "ll";
  o->ht = !strcmp(mode, "ht");
  if (!o->ht && strcmp(mode, "ll")) {
    snprintf(o->error, sizeof(o->error), "NCCL_TESTS_EP_MODE=%.40s is neither ll nor ht", mode);
  }
  layout = layout && *layout ? layout : o->ht ? "flat" : "em";
  if (!strcmp(layout, "em")) {
    o->layout = NCCL_EP_LAYOUT_EXPERT_MAJOR;
  } else if (!strcmp(layout, "flat") && o->ht) {
    o->layout = NCCL_EP_LAYOUT_FLAT;
  } else if (!strcmp(layout, "rm") && !o->ht) {
    o->layout = NCCL_EP_LAYOUT_RANK_MAJOR;
  } else {
    snprintf(o->error, sizeof(o->error), "NCCL_TESTS_EP_LAYOUT=%.40s is not %s", layout,
             o->ht ? "flat or em, the layouts of mode ht" : "em or rm, the layouts of mode ll");
  }
}

static void EpReadFormat(EpOptions* o) {
  const char* text = getenv("NCCL_TESTS_EP_QUANT");

  text = text && *text ? text : "none";
  o->format = 0;
  while (o->format < EP_FORMATS && strcmp(text, EpFormats[o->format].name)) {
    o->format++;
  }
  if (o->format == EP_FORMATS) {
    snprintf(o->error, sizeof(o->error),
             "NCCL_TESTS_EP_QUANT=%.40s is not none, fp8, mxfp8 or nvfp4", text);
    o->format = EP_NONE;
  }
}

/* Why the call, a combine or a dispatch, cannot have rows of that format, or "". */
static const char* EpExcludedFormat(const EpOptions& o, bool combine) {
  if (o.format == EP_NONE) {
    return "";
  }
  if (combine && o.topk > EP_EXACT_TOPK) {
    return "combine with NCCL_TESTS_EP_QUANT is checked up to TOPK=8";
  }
  if (combine && o.format == EP_MXFP8) {
    return !o.ht || o.layout != NCCL_EP_LAYOUT_EXPERT_MAJOR
               ? "combine has NCCL_TESTS_EP_QUANT=mxfp8 in mode ht, layout em"
           : o.hidden % 512 ? "mxfp8 in combine needs a HIDDEN that 512 divides"
                            : "";
  }
  return o.ht ? "NCCL_TESTS_EP_QUANT needs mode ll (in mode ht rows of 8-bit floats are sent by -d "
                "f8e4m3)"
         : o.hidden % EpFormats[o.format].multiple
             ? "NCCL_TESTS_EP_QUANT: HIDDEN is a multiple of 128 with fp8 and mxfp8, 64 with nvfp4"
             : "";
}

static EpOptions EpReadOptions(void) {
  EpOptions o = {};

  o.hidden = 7168;
  o.topk = 8;
  o.experts = 256;
  o.seed = 1;
  EpReadNumber(&o, "NCCL_TESTS_EP_HIDDEN", 8, 1 << 20, &o.hidden);
  EpReadNumber(&o, "NCCL_TESTS_EP_TOPK", 1, EP_MAX_TOPK, &o.topk);
  EpReadNumber(&o, "NCCL_TESTS_EP_EXPERTS", 1, 1 << 16, &o.experts);
  EpReadNumber(&o, "NCCL_TESTS_EP_SEED", 0, INT32_MAX, &o.seed);
  EpReadNumber(&o, "NCCL_TESTS_EP_SMS", 0, 1024, &o.sms);
  EpReadNumber(&o, "NCCL_TESTS_EP_WINDOWS", 0, 1, &o.windows);
  EpReadImbalance(&o);
  EpReadMode(&o);
  EpReadFormat(&o);
  if (o.topk > o.experts) {
    snprintf(o.error, sizeof(o.error), "NCCL_TESTS_EP_TOPK=%ld is more than the %ld experts",
             o.topk, o.experts);
  }
  return o;
}

static const EpOptions& EpGetOptions(void) {
  static const EpOptions options = EpReadOptions();

  return options;
}

/* ---- routing ---- */

__host__ __device__ static inline uint32_t EpHash(uint32_t a, uint32_t b) {
  uint32_t x = a * 0x9e3779b1u + b;

  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

/*
 * The experts of a token, all different. A share of the choices, IMBALANCE, goes to the experts of
 * rank 0 while there are any left.
 */
static void EpRoute(const EpOptions& o, int nranks, int rank, int token, int* ids) {
  uint32_t local = (uint32_t)o.experts / nranks;
  uint32_t state = EpHash(EpHash((uint32_t)o.seed, rank), token);

  for (int k = 0; k < o.topk; k++) {
    bool first = EpHash(state, 1000 + k) < o.imbalance * 4294967296.0;
    uint32_t range = first && (uint32_t)k < local ? local : (uint32_t)o.experts;
    uint32_t id = EpHash(state, k) % range;

    for (int i = 0; i < k; i++) {
      if (ids[i] == (int)id) {
        id = (id + 1) % range;
        i = -1; /* once more from the start */
      }
    }
    ids[k] = (int)id;
  }
}

/* ---- bytes ---- */

struct EpTraffic {
  double ranks;   /* rows that a rank's tokens become, one per (token, rank), on average */
  double experts; /* the same, one per (token, expert) */
  double busyDispatch,
      busyCombine; /* rows that leave or enter the busiest rank, itself not counted */
};

/* Rows between ranks. byExpert: combine returns one per (token, expert). */
static EpTraffic EpCountTraffic(const EpOptions& o, int nranks, int tokens, bool byExpert) {
  std::vector<double> outDispatch(nranks), inDispatch(nranks), inCombine(nranks),
      outCombine(nranks);
  int local = (int)o.experts / nranks, ids[EP_MAX_TOPK];
  EpTraffic t = {};

  for (int r = 0; r < nranks; r++) {
    for (int token = 0; token < tokens; token++) {
      EpRoute(o, nranks, r, token, ids);
      for (int k = 0; k < o.topk; k++) {
        int to = ids[k] / local;
        bool again = false;

        for (int i = 0; i < k; i++) {
          again |= ids[i] / local == to;
        }
        t.experts += 1.0 / nranks;
        t.ranks += again ? 0 : 1.0 / nranks;
        outDispatch[r] += to != r && !again;
        inDispatch[to] += to != r && !again;
        inCombine[r] += to != r && (byExpert || !again);
        outCombine[to] += to != r && (byExpert || !again);
      }
    }
  }
  for (int r = 0; r < nranks; r++) {
    t.busyDispatch = std::max(t.busyDispatch, std::max(outDispatch[r], inDispatch[r]));
    t.busyCombine = std::max(t.busyCombine, std::max(outCombine[r], inCombine[r]));
  }
  return t;
}

static bool EpCombinesByExpert(const EpOptions& o) {
  return !o.ht && o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
}

/* The same, remembered: it is asked for after each measurement. */
static EpTraffic EpGetTraffic(int nranks, int tokens) {
  static std::map<std::pair<int, int>, EpTraffic> known;
  static std::mutex lock;
  std::lock_guard<std::mutex> hold(lock);
  std::pair<int, int> key(nranks, tokens);

  if (!known.count(key)) {
    known[key] = EpCountTraffic(EpGetOptions(), nranks, tokens, EpCombinesByExpert(EpGetOptions()));
  }
  return known[key];
}

/* Releases of nccl-tests differ in the type of typesize. */
template <bool COMBINE, typename SIZE>
static void EpGetBw(size_t count, SIZE typesize, double sec, double* algBw, double* busBw,
                    int nranks) {
  const EpOptions& o = EpGetOptions();
  EpTraffic t = EpGetTraffic(nranks, (int)(count / o.hidden));
  const EpFormat& f = EpFormats[o.format];
  double rowBytes = (double)o.hidden * typesize;
  double rows = COMBINE && EpCombinesByExpert(o) ? t.experts : t.ranks;

  if (o.format != EP_NONE) {
    rowBytes = (double)o.hidden / f.perByte + (double)o.hidden / f.group * f.scaleSize;
  }
  *algBw = rows * rowBytes / 1.0E9 / sec;
  *busBw = (COMBINE ? t.busyCombine : t.busyDispatch) * rowBytes / 1.0E9 / sec;
}

/* The size axis is that of the tokens of one rank: whole tokens of HIDDEN elements. */
static void EpGetCollByteCount(size_t* sendcount, size_t* recvcount, size_t* paramcount,
                               size_t* sendInplaceOffset, size_t* recvInplaceOffset, size_t count,
                               size_t eltSize, int nranks) {
  size_t hidden = (size_t)EpGetOptions().hidden;

  *paramcount = *sendcount = *recvcount = count / hidden * hidden;
  *sendInplaceOffset = *recvInplaceOffset = 0;
}

static void EpGetBuffSize(size_t* sendcount, size_t* recvcount, size_t count, int nranks) {
  *sendcount = *recvcount = count;
}

#endif
