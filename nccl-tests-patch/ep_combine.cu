/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine Performance Test
 * ========================
 *
 * ncclEpCombine of libnccl_ep: the rows that a dispatch brought go back to their ranks and are
 * added up there. The size is that of one rank's sums; the options are those of ep_dispatch_perf.
 *
 *   ep_combine_perf -b 14336 -e 1835008 -f 2 -d bfloat16                   1 to 128 tokens
 *   NCCL_TESTS_EP_MODE=ht ep_combine_perf -b 56M -e 56M -d bfloat16        4096 tokens
 */
#include "ep_common.h"

/* The row after the expert, or the rank, that has it. */
struct EpAnswer {
  uint32_t seed;
  int most;
  float unit;

  __host__ __device__ float operator()(int rank, int token, int who, size_t col) const {
    return (float)EpNumber(seed ^ 0x5bd1e995u, rank, token, who, col, most) * unit;
  }
};

struct EpFillAnswers {
  const EpRow* row;
  void* out;
  ncclDataType_t type;
  size_t size, hidden;
  EpAnswer answer;
  int rank;

  __host__ __device__ void operator()(size_t i) const {
    const EpRow& r = row[i / hidden];
    size_t col = i % hidden;
    float v = answer(r.src, r.token, r.expert < 0 ? rank : r.expert, col);

    EpPut(out, (size_t)r.place * hidden + col, size, EpBits(type, v));
  }
};

struct EpFillSums {
  void* to;
  const int64_t* ids;
  ncclDataType_t type;
  size_t size, hidden;
  EpAnswer answer;
  int rank, topk, local;
  bool weighted, byExpert;

  __host__ __device__ void operator()(size_t i) const {
    int token = (int)(i / hidden);
    const int64_t* id = ids + (size_t)token * topk;
    float sum = 0;

    for (int k = 0; k < topk; k++) {
      int to = (int)id[k] / local;
      bool again = false;

      for (int j = 0; j < k && !byExpert; j++) {
        again |= (int)id[j] / local == to;
      }
      if (!again) {
        float v = answer(rank, token, byExpert ? (int)id[k] : to, i % hidden);

        sum += weighted ? v * EpWeight(rank, token, k) : v;
      }
    }
    EpPut(to, i, size, EpBits(type, sum));
  }
};

testResult_t EpCombineInitData(struct threadArgs* args, ncclDataType_t type, ncclRedOp_t op,
                               int root, int rep, int in_place) {
  const EpOptions& o = EpGetOptions();
  EpState* s = EpFind(args->comms[0]);
  size_t n = args->expectedBytes / wordSize(type);
  cudaStream_t stream = args->streams[0];
  bool byExpert = o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
  EpAnswer answer;

  TESTCHECK(EpSetTokens(s, (int)(n / s->hidden), args->sendbuffs[0], stream));
  s->seed = (uint32_t)rep;
  CUDACHECK(cudaMemsetAsync(args->recvbuffs[0], 0xa5, args->expectedBytes, stream));
  answer = { s->seed, o.format == EP_NONE ? 3 : EpFormats[o.format].most,
             EpFormats[o.format].unit };
  TESTCHECK(EpForEach(EpFillAnswers{ s->dRows, s->out, type, s->size, s->hidden, answer, s->rank },
                      s->rows.size() * s->hidden, stream));
  TESTCHECK(EpForEach(EpFillSums{ args->expected[0], s->ownIds, type, s->size, s->hidden, answer,
                                  s->rank, (int)s->topk, s->local, byExpert && !o.ht, byExpert },
                      n, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  // We don't support in-place combine
  args->reportErrors = in_place ? 0 : 1;
  return testSuccess;
}

testResult_t EpCombineRunColl(void* sendbuff, size_t sendoffset, void* recvbuff, size_t recvoffset,
                              size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                              ncclComm_t comm, cudaStream_t stream, int deviceImpl) {
  const EpOptions& o = EpGetOptions();
  ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
  ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
  ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;
  bool byExpert = o.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
  EpTensor tokens, sums, weights, scales;
  EpState* s;
  size_t blocks;

  if (deviceImpl != 0) {
    return testNotImplemented;
  }
  s = EpFind(comm);
  blocks = byExpert ? s->local : s->nranks;
  TESTCHECK(EpSetTokens(s, (int)(count / s->hidden), (char*)sendbuff + sendoffset, stream));
  in.tokens = o.ht ? EpSetRows(&tokens, s, type, 2, s->maxRows, s->hidden)
                   : EpSetRows(&tokens, s, type, 3, blocks, s->maxRows / blocks, s->hidden);
  out.tokens = EpSetTensor(&sums, type, (char*)recvbuff + recvoffset, 2, s->tokens, s->hidden);
  if (byExpert && !o.ht) {
    out.topk_weights = EpSetTensor(&weights, ncclFloat32, s->weights, 2, s->tokens, s->topk);
  }
  config.quant_recipe = EpFormats[o.format].combine;
  if (o.format == EP_NVFP4) {
    in.scales = EpSetTensor(&scales, ncclFloat32, s->globals, 3, blocks, s->maxRows / blocks, 1);
  }
  EPCHECK(ncclEpCombine(s->handle, &in, &out, &config, stream));
  return testSuccess;
}

struct testColl epCombineTest = { "EpCombine", EpGetCollByteCount, EpCombineInitData, EpGetBw<true>,
                                  EpCombineRunColl };

testResult_t EpCombineRunTest(struct threadArgs* args, int root, ncclDataType_t type,
                              const char* typeName, ncclRedOp_t op, const char* opName) {
  args->collTest = &epCombineTest;
  return EpRunTest(args, "ep_combine", false, type, typeName);
}

__attribute__((weak)) struct testEngine ncclTestEngine = {
  /* .getBuffSize = */ EpGetBuffSize,
  /* .runTest = */ EpCombineRunTest
};
