/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch Performance Test
 * =========================
 *
 * ncclEpDispatch of libnccl_ep: every rank sends its tokens to the ranks of their experts. The size
 * is that of one rank's tokens; README.md beside this file's origin lists what the columns count.
 *
 * NCCL_TESTS_EP_MODE       ll (default) or ht: low latency or high throughput
 * NCCL_TESTS_EP_LAYOUT     em, or rm (mode ll; default em), or flat (mode ht; default flat)
 * NCCL_TESTS_EP_HIDDEN     elements of a token, 7168
 * NCCL_TESTS_EP_TOPK       experts of a token, 8
 * NCCL_TESTS_EP_EXPERTS    experts of all ranks together, 256
 * NCCL_TESTS_EP_QUANT      fp8, mxfp8 or nvfp4: how -d bfloat16 tokens travel (mode ll), none
 * NCCL_TESTS_EP_SEED       of the routing, 1
 * NCCL_TESTS_EP_IMBALANCE  share of the choices that goes to rank 0's experts on top, 0
 * NCCL_TESTS_EP_SMS        most SMs of an operation, 0: the library's choice
 *
 *   ep_dispatch_perf -b 14336 -e 1835008 -f 2 -d bfloat16                   1 to 128 tokens
 *   NCCL_TESTS_EP_MODE=ht ep_dispatch_perf -b 56M -e 56M -d bfloat16        4096 tokens
 */
#include "ep_common.h"

/* An 8-bit float with 4 bits of exponent, 3 of mantissa. */
__host__ __device__ static inline float EpFromFp8(uint8_t b) {
  int e = b >> 3 & 15, m = b & 7;
  float v = e ? (float)(8 + m) : (float)m;

  for (int i = e ? e : 1; i < 10; i++) {
    v *= 0.5f;
  }
  for (int i = 10; i < e; i++) {
    v *= 2;
  }
  return b & 0x80 ? -v : v;
}

/* 2 bits of exponent, 1 of mantissa. */
__host__ __device__ static inline float EpFromFp4(int b) {
  float v = b & 7;

  v = (b & 7) < 4 ? v / 2 : (b & 7) < 6 ? v - 2 : 2 * v - 8;
  return b & 8 ? -v : v;
}

__host__ __device__ static inline void EpCountWrong(unsigned long long* wrong, int n) {
#ifdef __CUDA_ARCH__
  if (n) {
    atomicAdd(wrong, (unsigned long long)n);
  }
#else
  *wrong += n;
#endif
}

struct EpCheckRows {
  const EpRow* row;
  const void *out, *scales;
  int sent;
  EpFormat format;
  ncclDataType_t type;
  size_t size, hidden;
  uint32_t seed;
  unsigned long long* wrong;

  __host__ __device__ float Decode(size_t place, size_t col) const {
    const uint8_t* bytes = (const uint8_t*)out + place * (hidden / format.perByte);
    size_t scale = place * (hidden / format.group) + col / format.group;

    switch (sent) {
    case EP_FP8:
      return EpFromFp8(bytes[col]) * ((const float*)scales)[scale];
    case EP_MXFP8:
      return ldexpf(EpFromFp8(bytes[col]), ((const uint8_t*)scales)[scale] - 127);
    default:
      return EpFromFp4(bytes[col / 2] >> 4 * (col & 1)) *
             EpFromFp8(((const uint8_t*)scales)[scale]) / EP_NVFP4_SCALE;
    }
  }

  __host__ __device__ void operator()(size_t i) const {
    const EpRow& r = row[i / hidden];
    size_t col = i % hidden, at = (size_t)r.place * hidden + col;
    float v = (float)EpNumber(seed, r.src, r.token, 0, col, format.most) * format.unit;

    if (sent != EP_NONE) {
      EpCountWrong(wrong, Decode(r.place, col) != v);
    } else {
      EpCountWrong(wrong, EpTake(out, at, size) != EpBits(type, v));
    }
  }
};

/* Ids and weights that came with the rows. */
struct EpCheckRouting {
  const EpRow* row;
  const int *allIds, *outIds;
  const int64_t* outIds64;
  const float* weights;
  int maxTokens, topk, firstExpert, local;
  bool byExpert, flat;
  unsigned long long* wrong;

  __host__ __device__ void operator()(size_t i) const {
    const EpRow& r = row[i];
    const int* ids = allIds + ((size_t)r.src * maxTokens + r.token) * topk;
    size_t at = (size_t)r.place * topk;
    int n = 0;

    for (int k = 0; k < topk; k++) {
      int e = ids[k] - firstExpert, place = 0;
      float w = EpWeight(r.src, r.token, k);
      bool here = e >= 0 && e < local;

      if (byExpert) {
        EpCountWrong(wrong, ids[k] == r.expert && weights[r.place] != w);
      } else if (!flat) {
        EpCountWrong(wrong, outIds[at + k] != (here ? e : -1));
        EpCountWrong(wrong, weights[at + k] != w);
      } else if (here) {
        for (int j = 0; j < topk; j++) { /* in ascending order */
          place += ids[j] >= firstExpert && ids[j] < ids[k];
        }
        EpCountWrong(wrong, outIds64[at + place] != e);
        EpCountWrong(wrong, weights[at + place] != w);
        n++;
      }
    }
    for (; flat && n < topk; n++) {
      EpCountWrong(wrong, outIds64[at + n] != -1);
      EpCountWrong(wrong, weights[at + n] != 0);
    }
  }
};

struct EpCheckCounts {
  const int *got, *want;
  unsigned long long* wrong;

  __host__ __device__ void operator()(size_t i) const {
    EpCountWrong(wrong, got[i] != want[i]);
  }
};

/*
 * nccl-tests compares the receive buffer: it gets what is expected there, but for as many elements
 * as were found wrong.
 */
struct EpReport {
  EpFillTokens fill;
  const unsigned long long* wrong;

  __host__ __device__ void operator()(size_t i) const {
    fill(i);
    if (i < *wrong) {
      EpPut(fill.to, i, fill.size, EpTake(fill.to, i, fill.size) ^ 1);
    }
  }
};

static EpFillTokens EpFillOf(const EpState* s, void* to) {
  const EpFormat& f = EpFormats[s->sent];

  return EpFillTokens{ to, s->type, s->size, s->hidden, s->seed, s->rank, f.most, f.unit };
}

static testResult_t EpDispatchCheck(EpState* s, void* recv, cudaStream_t stream) {
  const EpOptions& o = EpGetOptions();
  bool byExpert = o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
  EpCheckRows rows = { s->dRows, s->out,  s->scales, s->sent, EpFormats[s->sent],
                       s->type,  s->size, s->hidden, s->seed, s->wrong };
  EpCheckRouting routing = { s->dRows,      s->allIds,    s->outIds,         s->outIds64,
                             s->outWeights, s->maxTokens, (int)s->topk,      s->rank * s->local,
                             s->local,      byExpert,     o.ht && !byExpert, s->wrong };
  EpCheckCounts counts = { s->counts, s->wantCounts, s->wrong };
  EpCheckCounts total = { s->total, s->wantCounts + s->ncounts, s->wrong };
  EpFillTokens fill = EpFillOf(s, recv);
  EpReport report = { fill, s->wrong };

  TESTCHECK(EpForEach(rows, s->rows.size() * s->hidden, stream));
  if (o.ht || !byExpert) {
    TESTCHECK(EpForEach(routing, s->rows.size(), stream));
  }
  TESTCHECK(EpForEach(counts, s->ncounts, stream));
  TESTCHECK(EpForEach(total, o.ht ? 1 : 0, stream));
  return EpForEach(report, (size_t)s->tokens * s->hidden, stream);
}

testResult_t EpDispatchInitData(struct threadArgs* args, ncclDataType_t type, ncclRedOp_t op,
                                int root, int rep, int in_place) {
  EpState* s = EpFind(args->comms[0]);
  size_t n = args->sendBytes / wordSize(type);
  void* send = in_place ? args->recvbuffs[0] : args->sendbuffs[0];
  cudaStream_t stream = args->streams[0];

  TESTCHECK(EpSetTokens(s, (int)(n / s->hidden), send, stream));
  s->seed = (uint32_t)rep;
  CUDACHECK(cudaMemsetAsync(args->recvbuffs[0], 0, args->expectedBytes, stream));
  CUDACHECK(cudaMemsetAsync(s->out, 0xa5, s->maxRows * s->hidden * s->size, stream));
  CUDACHECK(cudaMemsetAsync(s->wrong, 0, sizeof(*s->wrong), stream));
  TESTCHECK(EpForEach(EpFillOf(s, send), n, stream));
  TESTCHECK(EpForEach(EpFillOf(s, args->expected[0]), n, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  s->check = true;
  // We don't support in-place dispatch
  args->reportErrors = in_place ? 0 : 1;
  return testSuccess;
}

testResult_t EpDispatchRunColl(void* sendbuff, size_t sendoffset, void* recvbuff, size_t recvoffset,
                               size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                               ncclComm_t comm, cudaStream_t stream, int deviceImpl) {
  EpState* s;
  char* send = (char*)sendbuff + sendoffset;

  if (deviceImpl != 0) {
    return testNotImplemented;
  }
  s = EpFind(comm);
  TESTCHECK(EpSetTokens(s, (int)(count / s->hidden), send, stream));
  TESTCHECK(EpDispatch(s, send, stream));
  if (s->check) {
    s->check = false;
    TESTCHECK(EpDispatchCheck(s, (char*)recvbuff + recvoffset, stream));
  }
  return testSuccess;
}

struct testColl epDispatchTest = { "EpDispatch", EpGetCollByteCount, EpDispatchInitData,
                                   EpGetBw<false>, EpDispatchRunColl };

testResult_t EpDispatchRunTest(struct threadArgs* args, int root, ncclDataType_t type,
                               const char* typeName, ncclRedOp_t op, const char* opName) {
  args->collTest = &epDispatchTest;
  return EpRunTest(args, "ep_dispatch", true, type, typeName);
}

__attribute__((weak)) struct testEngine ncclTestEngine = {
  /* .getBuffSize = */ EpGetBuffSize,
  /* .runTest = */ EpDispatchRunTest
};
