/* SPDX-License-Identifier: Apache-2.0 */
/* A tool that NVTX loads (NVTX_INJECTION64_PATH): prints domains and ranges to standard error. */
#include <stdint.h>
#include <stdio.h>
#include <nvtx3/nvToolsExt.h>

static __thread int depth;

static nvtxDomainHandle_t domain_create(const char *name)
{
	fprintf(stderr, "nvtx: domain %s\n", name);
	return (nvtxDomainHandle_t)(uintptr_t)1;
}

static int range_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
	fprintf(stderr, "nvtx: push %d %s [%llu]\n", ++depth, event->message.ascii,
		(unsigned long long)event->payload.ullValue);
	return domain ? depth - 1 : -1;
}

static int range_pop(nvtxDomainHandle_t domain)
{
	fprintf(stderr, "nvtx: pop %d\n", depth);
	return domain ? --depth : -1;
}

static void replace(NvtxFunctionTable table, unsigned int size, unsigned int at,
		    NvtxFunctionPointer fn)
{
	if (at < size && table[at]) {
		*table[at] = fn;
	}
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
	const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
	NvtxFunctionTable table = NULL;
	unsigned int size = 0;

	if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) {
		return 0;
	}
	replace(table, size, NVTX_CBID_CORE2_DomainCreateA, (NvtxFunctionPointer)domain_create);
	replace(table, size, NVTX_CBID_CORE2_DomainRangePushEx, (NvtxFunctionPointer)range_push);
	replace(table, size, NVTX_CBID_CORE2_DomainRangePop, (NvtxFunctionPointer)range_pop);
	return 1;
}
