/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by ep_dispatch_perf and ep_combine_perf: a group, a handle, and the data that is checked.
 */
#ifndef EP_COMMON_H
#define EP_COMMON_H

#include "ep_options.h"

#define EPCHECK(cmd)                                                                               \
  do {                                                                                             \
    ncclResult_t res = cmd;                                                                        \
    if (res != ncclSuccess) {                                                                      \
      printf("Test NCCL EP failure %s:%d '%s': NCCL_DEBUG=WARN prints why\n", __FILE__, __LINE__,  \
             ncclGetErrorString(res));                                                             \
      return testNcclError;                                                                        \
    }                                                                                              \
  } while (0)

/* ---- elements: small numbers, which all types hold and add up exactly ---- */

__host__ __device__ static inline int EpNumber(uint32_t seed, int rank, int token, int key,
                                               size_t col, int most) {
  uint32_t h = EpHash(EpHash(EpHash(EpHash(seed, rank), token), key), (uint32_t)col);

  return (int)(h % (2 * most + 1)) - most;
}

/* Of the k-th expert of a token. */
__host__ __device__ static inline float EpWeight(int rank, int token, int k) {
  return EpHash(EpHash(rank, token), k) & 1 ? 0.5f : 1.0f;
}

/* How a type has a multiple of 0.5 below 128; a single byte just has some number. */
__host__ __device__ static inline uint32_t EpBits(ncclDataType_t type, float v) {
  uint32_t u;

  memcpy(&u, &v, sizeof(u));
  switch (type) {
  case ncclFloat32:
    return u;
  case ncclBfloat16:
    return u >> 16;
  case ncclFloat16:
    return v == 0 ? 0 : (u >> 16 & 0x8000) | ((u >> 23 & 0xff) - 112) << 10 | (u >> 13 & 0x3ff);
  default:
    return (uint32_t)(int)(v + 16);
  }
}

__host__ __device__ static inline void EpPut(void* at, size_t i, size_t size, uint32_t bits) {
  if (size == 4) {
    ((uint32_t*)at)[i] = bits;
  } else if (size == 2) {
    ((uint16_t*)at)[i] = (uint16_t)bits;
  } else {
    ((uint8_t*)at)[i] = (uint8_t)bits;
  }
}

__host__ __device__ static inline uint32_t EpTake(const void* at, size_t i, size_t size) {
  return size == 4   ? ((const uint32_t*)at)[i]
         : size == 2 ? ((const uint16_t*)at)[i]
                     : ((const uint8_t*)at)[i];
}

#ifdef __CUDACC__
template <typename F> __global__ void EpForEachKernel(F f, size_t n) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
       i += (size_t)gridDim.x * blockDim.x) {
    f(i);
  }
}

template <typename F> static testResult_t EpForEach(F f, size_t n, cudaStream_t stream) {
  if (n > 0) {
    EpForEachKernel<<<(unsigned)std::min<size_t>((n + 255) / 256, 4096), 256, 0, stream>>>(f, n);
    CUDACHECK(cudaGetLastError());
  }
  return testSuccess;
}
#endif

/* The tokens of a rank, as it sends them. */
struct EpFillTokens {
  void* to;
  ncclDataType_t type;
  size_t size, hidden;
  uint32_t seed;
  int rank, most;
  float unit;

  __host__ __device__ void operator()(size_t i) const {
    int v = EpNumber(seed, rank, (int)(i / hidden), 0, i % hidden, most);

    EpPut(to, i, size, EpBits(type, (float)v * unit));
  }
};

/* ---- a group and a handle ---- */

/* A received row: where it is, whose token it has, and for which expert (or, one per rank, -1). */
struct EpRow {
  int place, src, token, expert;
};

struct EpTensor {
  ncclEpTensor_t t;
  size_t sizes[3];
};

struct EpState {
  ncclEpGroup_t group;
  ncclEpHandle_t handle;
  int rank, nranks, local; /* local: experts of a rank */
  ncclDataType_t type;
  size_t size, hidden, topk;
  int maxTokens, tokens; /* room for; routed */
  size_t maxRows;        /* of out */
  uint32_t seed;
  int sent;             /* how a dispatch sends rows: index of EpFormats */
  bool check;           /* the next call's results are looked at */
  std::vector<int> ids; /* [nranks][maxTokens][topk] */
  std::vector<EpRow> rows;
  /* on the device */
  int* allIds; /* ids */
  EpRow* dRows;
  int64_t *ownIds, *outIds64; /* of the own tokens; flat: received */
  float *weights, *outWeights;
  float* globals;      /* NVFP4: EP_NVFP4_SCALE of each row */
  char* out;           /* received rows; combine's input */
  ncclWindow_t window; /* where out is; NULL: in plain memory */
  char* scales;        /* theirs */
  int *outIds, *counts, *wantCounts, *total;
  int ncounts;
  unsigned long long* wrong;
};

/* One per communicator: tests get no more than that. */
struct EpStates {
  std::mutex lock;
  std::map<ncclComm_t, EpState*> of;
};

static EpStates& EpGetStates(void) {
  static EpStates states;

  return states;
}

static EpState* EpFind(ncclComm_t comm) {
  EpStates& states = EpGetStates();
  std::lock_guard<std::mutex> hold(states.lock);

  return states.of.count(comm) ? states.of[comm] : nullptr;
}

static ncclEpTensor_t* EpSetTensor(EpTensor* d, ncclDataType_t type, void* data, unsigned ndim,
                                   size_t n0, size_t n1 = 0, size_t n2 = 0) {
  d->t = NCCL_EP_TENSOR_INIT;
  d->sizes[0] = n0;
  d->sizes[1] = n1;
  d->sizes[2] = n2;
  d->t.ndim = ndim;
  d->t.datatype = type;
  d->t.data = data;
  d->t.sizes = d->sizes;
  return &d->t;
}

/* The rows that a rank receives, as dispatch writes and combine reads them. */
static ncclEpTensor_t* EpSetRows(EpTensor* d, const EpState* s, ncclDataType_t type, unsigned ndim,
                                 size_t n0, size_t n1, size_t n2 = 0) {
  EpSetTensor(d, type, s->out, ndim, n0, n1, n2);
  d->t.win_hdl = s->window;
  return &d->t;
}

/* The rows that a rank receives of so many tokens of each rank, in the order of their places. */
static std::vector<EpRow> EpListRows(const EpState* s, int rank, int tokens) {
  const EpOptions& o = EpGetOptions();
  bool byExpert = o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
  int zones = byExpert ? s->local : 1;
  std::vector<std::vector<EpRow>> zone(zones);
  std::vector<EpRow> rows;

  for (int r = 0; r < s->nranks; r++) {
    size_t before = zone[0].size();

    for (int t = 0; t < tokens; t++) {
      const int* ids = &s->ids[((size_t)r * s->maxTokens + t) * s->topk];

      for (size_t k = 0; k < s->topk; k++) {
        int e = ids[k] - rank * s->local;

        if (e < 0 || e >= s->local) {
          continue;
        }
        zone[byExpert ? e : 0].push_back({ 0, r, t, byExpert ? ids[k] : -1 });
        if (!byExpert) {
          break;
        }
      }
    }
    for (size_t i = before; !byExpert && i < zone[0].size(); i++) {
      zone[0][i].place = o.ht ? (int)i : r * s->maxTokens + (int)(i - before);
    }
  }
  for (int e = 0; e < zones; e++) {
    for (size_t i = 0; i < zone[e].size(); i++) {
      if (byExpert) {
        zone[e][i].place = (int)(o.ht ? rows.size() : (size_t)e * s->nranks * s->maxTokens + i);
      }
      rows.push_back(zone[e][i]);
    }
  }
  return rows;
}

static size_t EpMostRows(const EpState* s) {
  const EpOptions& o = EpGetOptions();
  size_t most = (size_t)s->maxTokens;

  if (!o.ht) {
    size_t each = (size_t)s->nranks * s->maxTokens;

    return o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR ? each * s->local : each;
  }
  for (int r = 0; r < s->nranks; r++) {
    most = std::max(most, EpListRows(s, r, s->maxTokens).size());
  }
  return most;
}

template <typename T> static testResult_t EpAlloc(T** at, size_t n) {
  CUDACHECK(cudaMalloc((void**)at, std::max<size_t>(n, 1) * sizeof(T)));
  return testSuccess;
}

/* Memory of received rows, if so in a window of all ranks. Collective. */
static testResult_t EpAllocRows(EpState* s, ncclComm_t comm) {
  size_t bytes = std::max<size_t>(s->maxRows * s->hidden * s->size, 1);

  if (!EpGetOptions().windows) {
    return EpAlloc(&s->out, bytes);
  }
  NCCLCHECK(ncclMemAlloc((void**)&s->out, bytes));
  NCCLCHECK(ncclCommWindowRegister(comm, s->out, bytes, &s->window, 0));
  if (!s->window) {
    fprintf(stderr, "NCCL_TESTS_EP_WINDOWS=1: NCCL gives no window for memory of ncclMemAlloc\n");
    return testInvalidUsage;
  }
  return testSuccess;
}

static testResult_t EpFreeRows(EpState* s, ncclComm_t comm) {
  if (!s->window) {
    CUDACHECK(cudaFree(s->out));
    return testSuccess;
  }
  NCCLCHECK(ncclCommWindowDeregister(comm, s->window));
  NCCLCHECK(ncclMemFree(s->out));
  return testSuccess;
}

static testResult_t EpAllocAll(EpState* s, ncclComm_t comm) {
  const EpOptions& o = EpGetOptions();
  size_t routing = (size_t)s->maxTokens * s->topk;
  size_t outRouting = o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR ? s->maxRows : s->maxRows * s->topk;
  std::vector<float> globals(o.format == EP_NVFP4 ? s->maxRows : 0, EP_NVFP4_SCALE);

  s->ncounts = o.layout == NCCL_EP_LAYOUT_RANK_MAJOR ? s->nranks : s->local;
  TESTCHECK(EpAlloc(&s->allIds, s->nranks * routing));
  TESTCHECK(EpAlloc(&s->dRows, s->maxRows));
  TESTCHECK(EpAlloc(&s->ownIds, routing));
  TESTCHECK(EpAlloc(&s->weights, routing));
  TESTCHECK(EpAllocRows(s, comm));
  TESTCHECK(EpAlloc(&s->scales, s->maxRows * s->hidden / EpFormats[s->sent].group *
                                    EpFormats[s->sent].scaleSize));
  TESTCHECK(EpAlloc(&s->globals, globals.size()));
  CUDACHECK(cudaMemcpy(s->globals, globals.data(), globals.size() * sizeof(float),
                       cudaMemcpyHostToDevice));
  TESTCHECK(EpAlloc(&s->outWeights, outRouting));
  TESTCHECK(EpAlloc(&s->outIds, o.ht ? 0 : outRouting));
  TESTCHECK(EpAlloc(&s->outIds64, o.ht ? outRouting : 0));
  TESTCHECK(EpAlloc(&s->counts, s->ncounts));
  TESTCHECK(EpAlloc(&s->wantCounts, s->ncounts + 1));
  TESTCHECK(EpAlloc(&s->total, 1));
  TESTCHECK(EpAlloc(&s->wrong, 1));
  CUDACHECK(cudaMemset(s->out, 0, s->maxRows * s->hidden * s->size));
  return testSuccess;
}

static testResult_t EpOpenGroup(EpState* s, ncclComm_t comm) {
  const EpOptions& o = EpGetOptions();
  ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

  config.algorithm = o.ht ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
  config.num_experts = (unsigned)o.experts;
  config.max_dispatch_tokens_per_rank = (unsigned)s->maxTokens;
  config.max_recv_tokens_per_rank = o.ht ? (unsigned)s->maxRows : 0;
  config.max_token_bytes = (unsigned)(s->hidden * s->size);
  config.max_num_sms = (unsigned)o.sms;
  config.num_topk = (unsigned)s->topk;
  EPCHECK(ncclEpCreateGroup(&s->group, comm, &config));
  EPCHECK(ncclEpInitHandle(&s->handle, s->group, o.layout, NULL, (int)s->topk, NULL));
  return testSuccess;
}

/* For the tests of one type. Collective. */
static testResult_t EpOpen(struct threadArgs* args, ncclDataType_t type, bool dispatch) {
  const EpOptions& o = EpGetOptions();
  EpState* s = new EpState();
  ncclComm_t comm = args->comms[0];

  NCCLCHECK(ncclCommCount(comm, &s->nranks));
  NCCLCHECK(ncclCommUserRank(comm, &s->rank));
  s->local = (int)o.experts / s->nranks;
  s->type = type;
  s->size = wordSize(type);
  s->hidden = o.hidden;
  s->topk = o.topk;
  s->maxTokens = (int)(args->maxbytes / (s->hidden * s->size));
  s->tokens = -1;
  s->sent = dispatch ? o.format : EP_NONE;
  s->ids.resize((size_t)s->nranks * s->maxTokens * s->topk);
  for (int r = 0; r < s->nranks; r++) {
    for (int t = 0; t < s->maxTokens; t++) {
      EpRoute(o, s->nranks, r, t, &s->ids[((size_t)r * s->maxTokens + t) * s->topk]);
    }
  }
  s->maxRows = EpMostRows(s);
  {
    EpStates& states = EpGetStates();
    std::lock_guard<std::mutex> hold(states.lock);

    states.of[comm] = s;
  }
  TESTCHECK(EpAllocAll(s, comm));
  CUDACHECK(
      cudaMemcpy(s->allIds, s->ids.data(), s->ids.size() * sizeof(int), cudaMemcpyHostToDevice));
  return EpOpenGroup(s, comm);
}

static testResult_t EpClose(ncclComm_t comm) {
  EpState* s = EpFind(comm);
  void* const memory[] = { s->allIds,     s->dRows,  s->ownIds,   s->weights, s->scales,
                           s->outWeights, s->outIds, s->outIds64, s->counts,  s->wantCounts,
                           s->total,      s->wrong,  s->globals };

  EPCHECK(ncclEpHandleDestroy(s->handle));
  EPCHECK(ncclEpGroupDestroy(s->group));
  TESTCHECK(EpFreeRows(s, comm));
  for (void* p : memory) {
    CUDACHECK(cudaFree(p));
  }
  std::lock_guard<std::mutex> hold(EpGetStates().lock);
  EpGetStates().of.erase(comm);
  delete s;
  return testSuccess;
}

/* ---- calls ---- */

static testResult_t EpDispatch(EpState* s, void* tokens, cudaStream_t stream) {
  const EpOptions& o = EpGetOptions();
  ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
  ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
  ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
  ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
  EpTensor t[8];
  bool byExpert = o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
  size_t blocks = o.ht ? 1 : byExpert ? s->local : s->nranks, each = s->maxRows / blocks;
  const EpFormat& f = EpFormats[s->sent];
  ncclDataType_t sent = s->sent != EP_NONE ? f.tokens : s->type;

  in.tokens = EpSetTensor(&t[0], s->type, tokens, 2, s->tokens, s->hidden);
  if (o.ht) {
    out.tokens = EpSetRows(&t[1], s, s->type, 2, each, s->hidden);
    in.topk_weights = EpSetTensor(&t[2], ncclFloat32, s->weights, 2, s->tokens, s->topk);
    out.topk_weights =
        EpSetTensor(&t[3], ncclFloat32, s->outWeights, byExpert ? 1 : 2, each, s->topk);
    if (!byExpert) {
      out.topk_idx = EpSetTensor(&t[4], ncclInt64, s->outIds64, 2, each, s->topk);
    }
    EPCHECK(ncclEpDispatch(s->handle, &in, &out, NULL, NULL, stream));
    return testSuccess;
  }
  out.tokens = EpSetRows(&t[1], s, sent, 3, blocks, each, s->hidden / f.perByte);
  config.quant_recipe = f.dispatch;
  if (s->sent != EP_NONE) {
    out.scales = EpSetTensor(&t[5], f.scales, s->scales, 3, blocks, each, s->hidden / f.group);
  }
  if (s->sent == EP_NVFP4) {
    in.scales = EpSetTensor(&t[7], ncclFloat32, s->globals, 1, 1);
  }
  if (byExpert) {
    info.expert_counters = EpSetTensor(&t[6], ncclInt32, s->counts, 1, blocks);
  } else {
    in.topk_weights = EpSetTensor(&t[2], ncclFloat32, s->weights, 2, s->tokens, s->topk);
    out.topk_weights = EpSetTensor(&t[3], ncclFloat32, s->outWeights, 3, blocks, each, s->topk);
    out.topk_idx = EpSetTensor(&t[4], ncclInt32, s->outIds, 3, blocks, each, s->topk);
    info.src_rank_counters = EpSetTensor(&t[6], ncclInt32, s->counts, 1, blocks);
  }
  EPCHECK(ncclEpDispatch(s->handle, &in, &out, &info, &config, stream));
  return testSuccess;
}

static testResult_t EpUpdate(EpState* s, cudaStream_t stream) {
  const EpOptions& o = EpGetOptions();
  ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
  EpTensor ids, counts, total;

  info.expert_counters = EpSetTensor(&counts, ncclInt32, s->counts, 1, s->local);
  info.recv_total_counter = EpSetTensor(&total, ncclInt32, s->total, 1, 1);
  EPCHECK(ncclEpUpdateHandle(s->handle,
                             EpSetTensor(&ids, ncclInt64, s->ownIds, 2, s->tokens, s->topk),
                             o.ht ? &info : NULL, stream));
  return testSuccess;
}

/*
 * Another number of tokens: their routing, and a dispatch, which combine needs. Collective, and not
 * possible while the stream is captured: a call that is not precedes each size.
 */
static testResult_t EpSetTokens(EpState* s, int tokens, void* send, cudaStream_t stream) {
  const EpOptions& o = EpGetOptions();
  std::vector<int> want(s->ncounts + 1);
  std::vector<int64_t> ids((size_t)tokens * s->topk);
  std::vector<float> weights(ids.size());

  if (tokens == s->tokens) {
    return testSuccess;
  }
  CUDACHECK(cudaStreamSynchronize(stream));
  s->tokens = tokens;
  s->rows = EpListRows(s, s->rank, tokens);
  want[s->ncounts] = (int)s->rows.size();
  for (const EpRow& row : s->rows) {
    const int* chosen = &s->ids[((size_t)row.src * s->maxTokens + row.token) * s->topk];

    if (o.layout == NCCL_EP_LAYOUT_RANK_MAJOR) {
      want[row.src]++;
      continue;
    }
    for (size_t k = 0; k < s->topk; k++) {
      int e = chosen[k] - s->rank * s->local;

      if (e >= 0 && e < s->local && (row.expert < 0 || row.expert == chosen[k])) {
        want[e]++;
      }
    }
  }
  for (size_t i = 0; i < ids.size(); i++) {
    ids[i] = s->ids[(size_t)s->rank * s->maxTokens * s->topk + i];
    weights[i] = EpWeight(s->rank, (int)(i / s->topk), (int)(i % s->topk));
  }
  CUDACHECK(
      cudaMemcpy(s->ownIds, ids.data(), ids.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
  CUDACHECK(cudaMemcpy(s->weights, weights.data(), weights.size() * sizeof(float),
                       cudaMemcpyHostToDevice));
  CUDACHECK(
      cudaMemcpy(s->wantCounts, want.data(), want.size() * sizeof(int), cudaMemcpyHostToDevice));
  CUDACHECK(
      cudaMemcpy(s->dRows, s->rows.data(), s->rows.size() * sizeof(EpRow), cudaMemcpyHostToDevice));
  TESTCHECK(EpUpdate(s, stream));
  TESTCHECK(EpDispatch(s, send, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  return testSuccess;
}

/* ---- running ---- */

/* One rank prints, once, why the test cannot be run. */
static testResult_t EpRefuse(struct threadArgs* args, const char* name, const char* text) {
  if (is_main_thread) {
    printf("# %s: %s\n", name, text);
  }
  return testInvalidUsage;
}

static testResult_t EpRunType(struct threadArgs* args, const char* name, bool dispatch,
                              ncclDataType_t type, const char* typeName) {
  const EpOptions& o = EpGetOptions();
  size_t row = (size_t)o.hidden * wordSize(type);
  char text[160];

  if (o.format != EP_NONE && type != ncclBfloat16) {
    return EpRefuse(args, name, "NCCL_TESTS_EP_QUANT needs tokens of -d bfloat16");
  }
  if (row % 16 || args->minbytes < row) {
    snprintf(text, sizeof(text),
             "a token has %zu bytes: that must be a multiple of 16, and -b at least as much", row);
    return EpRefuse(args, name, text);
  }
  if (is_main_thread) {
    printf("# %s: mode %s, layout %s, %ld of %ld experts, %ld elements, on the way %s; %zu bytes "
           "per token\n",
           name, o.ht ? "ht" : "ll",
           o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR ? "em"
           : o.layout == NCCL_EP_LAYOUT_FLAT       ? "flat"
                                                   : "rm",
           o.topk, o.experts, o.hidden, o.format != EP_NONE ? EpFormats[o.format].name : typeName,
           row);
  }
  TESTCHECK(EpOpen(args, type, dispatch));
  TESTCHECK(TimeTest(args, type, typeName, (ncclRedOp_t)0, "none", -1));
  return EpClose(args->comms[0]);
}

static testResult_t EpRunTest(struct threadArgs* args, const char* name, bool dispatch,
                              ncclDataType_t type, const char* typeName) {
  const EpOptions& o = EpGetOptions();
  int nranks = args->nProcs * args->nThreads * args->nGpus;
  int done = 0;

  if (*o.error) {
    return EpRefuse(args, name, o.error);
  }
  if (*EpExcludedFormat(o, !dispatch)) {
    return EpRefuse(args, name, EpExcludedFormat(o, !dispatch));
  }
  if (args->nGpus > 1) {
    return EpRefuse(args, name, "-g 1 alone is possible: take -t, or a process per GPU");
  }
  if (o.experts % nranks) {
    return EpRefuse(args, name, "NCCL_TESTS_EP_EXPERTS is not a multiple of the number of ranks");
  }
  for (int i = 0; i < test_typenum; i++) {
    ncclDataType_t t = test_types[i];
    bool possible = t == ncclFloat32 || t == ncclFloat16 || t == ncclBfloat16 ||
                    (dispatch && wordSize(t) == 1);

    if (((int)type != -1 && t != type) || !possible ||
        (o.format != EP_NONE && t != ncclBfloat16 && (int)type == -1)) {
      continue;
    }
    TESTCHECK(EpRunType(args, name, dispatch, t, test_typenames[i]));
    done++;
  }
  return done ? testSuccess
              : EpRefuse(args, name,
                         dispatch ? "-d: float, half, bfloat16 and types of one byte are possible"
                                  : "-d: float, half and bfloat16 are possible");
}

#endif
