# SPDX-License-Identifier: Apache-2.0
# ep_dispatch_perf and ep_combine_perf. NCCL_EP_HOME is where libnccl_ep was installed, or its source
# tree, whose build/ has the library.
NCCL_EP_HOME ?= /usr/local
NCCL_EP_LIB ?= $(firstword $(patsubst %/libnccl_ep.so,%,$(wildcard $(foreach dir,lib lib64 lib/*-linux-gnu build,$(NCCL_EP_HOME)/$(dir)/libnccl_ep.so))))

EP_BIN_FILES := $(DST_DIR)/ep_dispatch_perf$(NAME_SUFFIX) $(DST_DIR)/ep_combine_perf$(NAME_SUFFIX)
BIN_FILES += $(EP_BIN_FILES)

$(DST_DIR)/ep_dispatch.o $(DST_DIR)/ep_combine.o: ep_common.h ep_options.h
$(DST_DIR)/ep_dispatch.o $(DST_DIR)/ep_combine.o: NVCUFLAGS += -I$(NCCL_EP_HOME)/include
$(EP_BIN_FILES): NVLDFLAGS += $(if $(NCCL_EP_LIB),-L$(NCCL_EP_LIB) -Xlinker -rpath=$(NCCL_EP_LIB)) -lnccl_ep
.DEFAULT_GOAL := build
