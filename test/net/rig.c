/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "net/rig.h"

#define WAIT_MS 30000
#define LOG_LINES 256
#define LOG_TEXT 640

static struct {
	pthread_mutex_t lock;
	int n, level[LOG_LINES];
	char text[LOG_LINES][LOG_TEXT];
} logged = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void log_line(int level, unsigned long flags, const char *file, int line, const char *fmt,
		     ...)
{
	va_list args;
	char *text;

	(void)flags;
	pthread_mutex_lock(&logged.lock);
	text = logged.text[logged.n % LOG_LINES];
	va_start(args, fmt);
	vsnprintf(text, LOG_TEXT, fmt, args);
	va_end(args);
	logged.level[logged.n++ % LOG_LINES] = level;
	if (getenv("TEST_NET_LOG")) {
		printf("%d %s:%d %s\n", level, file, line, text);
	}
	pthread_mutex_unlock(&logged.lock);
}

void *net_logger(void)
{
	return (void *)(uintptr_t)log_line;
}

int net_log_count(int level)
{
	int count = 0;

	pthread_mutex_lock(&logged.lock);
	for (int i = 0; i < logged.n && i < LOG_LINES; i++) {
		count += logged.level[i] == level;
	}
	pthread_mutex_unlock(&logged.lock);
	return count;
}

const char *net_log_last(void)
{
	return logged.n ? logged.text[(logged.n - 1) % LOG_LINES] : "";
}

const char *net_log_find(int level, const char *part)
{
	const char *found = "";

	pthread_mutex_lock(&logged.lock);
	for (int i = logged.n - 1; i >= 0 && i > logged.n - 1 - LOG_LINES && !*found; i--) {
		if (logged.level[i % LOG_LINES] == level &&
		    strstr(logged.text[i % LOG_LINES], part)) {
			found = logged.text[i % LOG_LINES];
		}
	}
	pthread_mutex_unlock(&logged.lock);
	return found;
}

void net_log_clear(void)
{
	pthread_mutex_lock(&logged.lock);
	logged.n = 0;
	pthread_mutex_unlock(&logged.lock);
}

/* ---- the table ---- */

void **net_table(const char *library, const char *kind, int version)
{
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL), *table;
	char symbol[64];

	NET_NEED(lib, "%s", dlerror());
	snprintf(symbol, sizeof(symbol), "nccl%sPlugin_v%d", kind, version);
	table = dlsym(lib, symbol);
	NET_NEED(table, "%s", symbol);
	return table;
}

void net_load(struct net *n, const char *library, int version)
{
	n->version = version;
	n->ctx = NULL;
	n->table = net_table(library, "Net", version);
}

/* The member at a place, called as a function of this type. */
#define CALL(n, place, ...) ((int (*)(__VA_ARGS__))(uintptr_t)(n)->table[place])

static int init(struct net *n, int traffic_class)
{
	struct {
		int traffic_class;
	} config = { traffic_class };

	if (n->version >= 11) {
		return CALL(n, NET_INIT, void **, uint64_t, void *, void *,
			    void *)(&n->ctx, 4711, &config, (void *)(uintptr_t)log_line, NULL);
	}
	return n->version == 10
		       ? CALL(n, NET_INIT, void *, void *)((void *)(uintptr_t)log_line, NULL)
		       : CALL(n, NET_INIT, void *)((void *)(uintptr_t)log_line);
}

int net_init(struct net *n, int traffic_class)
{
	const char *ports = getenv("TEST_NET_PORTS");
	int rc = init(n, traffic_class), devs[8], next = 0, count;

	n->place[0] = 0;
	n->place[1] = 1;
	for (int i = 0; !rc && ports && *ports && i < 2; i++) {
		NEED(net_devices(n, &count) == NET_OK);
		count = *ports - '0';
		for (int k = 0; k < count; k++) {
			devs[k] = next++;
		}
		NET_NEED(net_merge(n, devs, count, &n->place[i]) == NET_OK, "%s", net_log_last());
		ports += ports[1] ? 2 : 1;
	}
	return rc;
}

int net_finalize(struct net *n)
{
	return n->version >= 11 ? CALL(n, NET_FINALIZE, void *)(n->ctx) : NET_OK;
}

int net_devices(struct net *n, int *count)
{
	return CALL(n, NET_DEVICES, int *)(count);
}

int net_properties(struct net *n, int dev, struct net_props *p)
{
	return net_properties_at(n, NET_PROPERTIES, dev, p);
}

int net_properties_at(struct net *n, int place, int dev, struct net_props *p)
{
	/* Words of 4 bytes, by version: the members up to regIsGlobal are alike. */
	union {
		struct {
			char *name, *path;
			uint64_t guid;
			int word[32];
		} s;
		uint8_t byte[256];
	} raw;
	int rc, at = 2, v8 = n->version == 8;
	size_t size = v8 ? 64 : n->version <= 10 ? 104 : n->version == 11 ? 112 : 128;
	int vdev = 10, sizes = n->version >= 12 ? 20 : 16, multi = sizes + 4;

	memset(&raw, 0xa5, sizeof(raw));
	rc = CALL(n, place, int, void *)(dev, &raw);
	for (size_t i = size; i < sizeof(raw); i++) {
		CHECK(raw.byte[i] == 0xa5, "version %d writes behind the struct, at %zu",
		      n->version, i);
	}
	memset(p, 0xff, sizeof(*p));
	p->name = raw.s.name;
	p->path = raw.s.path;
	p->guid = raw.s.guid;
	p->ptr_support = raw.s.word[0];
	p->global = raw.s.word[1];
	p->force_flush = v8 ? -1 : raw.s.word[at++];
	p->speed = raw.s.word[at++];
	p->port = raw.s.word[at++];
	memcpy(&p->latency, &raw.s.word[at++], 4);
	p->max_comms = raw.s.word[at++];
	p->max_recvs = raw.s.word[at++];
	p->type = raw.s.word[at++];
	p->type_version = raw.s.word[at++];
	if (!v8) {
		p->ndevs = raw.s.word[vdev];
		for (int i = 0; i < (n->version >= 12 ? 8 : 4); i++) {
			p->devs[i] = raw.s.word[vdev + 1 + i];
		}
		/* (ndevs and 4 or 8 numbers, and 4 bytes that align the sizes) */
		memcpy(&p->max_p2p, &raw.s.word[sizes], 8);
		memcpy(&p->max_coll, &raw.s.word[sizes + 2], 8);
	}
	if (n->version >= 11) {
		p->max_multi = raw.s.word[multi];
	}
	if (n->version >= 12) {
		p->rail = (int16_t)(raw.s.word[multi + 1] & 0xffff);
		p->plane = (int16_t)(raw.s.word[multi + 1] >> 16);
	}
	return rc;
}

int net_merge(struct net *n, const int *devs, int count, int *dev)
{
	int props[9] = { count };

	for (int i = 0; i < count && i < 8; i++) {
		props[1 + i] = devs[i];
	}
	return CALL(n, NET_MAKE_VDEVICE, int *, void *)(dev, props);
}

int net_listen(struct net *n, int dev, void *handle, void **comm)
{
	return n->version >= 11 ? CALL(n, NET_LISTEN, void *, int, void *, void **)(n->ctx, dev,
										    handle, comm)
				: CALL(n, NET_LISTEN, int, void *, void **)(dev, handle, comm);
}

int net_connect(struct net *n, int dev, void *handle, void **comm)
{
	struct {
		int traffic_class;
	} config = { -1 };
	void *device = &config;
	int rc;

	if (n->version >= 11) {
		rc = CALL(n, NET_CONNECT, void *, int, void *, void **,
			  void **)(n->ctx, dev, handle, comm, &device);
	} else if (n->version == 10) {
		rc = CALL(n, NET_CONNECT, int, void *, void *, void **,
			  void **)(dev, &config, handle, comm, &device);
	} else {
		rc = CALL(n, NET_CONNECT, int, void *, void **, void **)(dev, handle, comm,
									 &device);
	}
	CHECK(rc || !device, "a device handle that nobody has a use for");
	return rc;
}

int net_accept(struct net *n, void *listener, void **comm)
{
	void *device = &device;
	int rc = CALL(n, NET_ACCEPT, void *, void **, void **)(listener, comm, &device);

	CHECK(rc || !device, "a device handle that nobody has a use for");
	return rc;
}

int net_reg(struct net *n, void *comm, void *data, size_t size, int type, void **mr)
{
	return CALL(n, NET_REG_MR, void *, void *, size_t, int, void **)(comm, data, size, type,
									 mr);
}

int net_reg_dmabuf(struct net *n, void *comm, void *data, size_t size, uint64_t offset, int fd,
		   void **mr)
{
	return CALL(n, NET_REG_DMABUF, void *, void *, size_t, int, uint64_t, int,
		    void **)(comm, data, size, NET_CUDA, offset, fd, mr);
}

int net_dereg(struct net *n, void *comm, void *mr)
{
	return CALL(n, NET_DEREG_MR, void *, void *)(comm, mr);
}

int net_isend(struct net *n, void *comm, void *data, size_t size, int tag, void *mr, void **req)
{
	if (n->version == 8) {
		return CALL(n, NET_ISEND, void *, void *, int, int, void *,
			    void **)(comm, data, (int)size, tag, mr, req);
	}
	if (n->version == 9) {
		return CALL(n, NET_ISEND, void *, void *, size_t, int, void *,
			    void **)(comm, data, size, tag, mr, req);
	}
	return CALL(n, NET_ISEND, void *, void *, size_t, int, void *, void *,
		    void **)(comm, data, size, tag, mr, NULL, req);
}

int net_irecv(struct net *n, void *comm, int count, void **data, const size_t *sizes, int *tags,
	      void **mr, void **req)
{
	size_t wide[64];
	int narrow[64];

	for (int i = 0; i < count && i < 64; i++) {
		narrow[i] = (int)sizes[i];
		wide[i] = sizes[i];
	}
	if (n->version == 8) {
		return CALL(n, NET_IRECV, void *, int, void **, int *, int *, void **,
			    void **)(comm, count, data, narrow, tags, mr, req);
	}
	if (n->version == 9) {
		return CALL(n, NET_IRECV, void *, int, void **, size_t *, int *, void **,
			    void **)(comm, count, data, wide, tags, mr, req);
	}
	return CALL(n, NET_IRECV, void *, int, void **, size_t *, int *, void **, void **,
		    void **)(comm, count, data, wide, tags, mr, NULL, req);
}

int net_iflush(struct net *n, void *comm, int count, void **data, int *sizes, void **mr, void **req)
{
	return CALL(n, NET_IFLUSH, void *, int, void **, int *, void **, void **)(comm, count, data,
										  sizes, mr, req);
}

int net_test(struct net *n, void *req, int *done, int *sizes)
{
	return CALL(n, NET_TEST, void *, int *, int *)(req, done, sizes);
}

int net_close(struct net *n, enum net_place which, void *comm)
{
	return CALL(n, which, void *)(comm);
}

/* ---- on top of it ---- */

void net_dmabuf_make(struct net_dmabuf *d, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	d->offset = 3 * page + 1096;
	d->map_size = (d->offset + size + 2 * page - 1) & ~(page - 1);
	d->fd = memfd_create("dmabuf", MFD_CLOEXEC);
	NEED(d->fd >= 0 && ftruncate(d->fd, (off_t)d->map_size) == 0);
	d->map = mmap(NULL, d->map_size, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
	NEED(d->map != MAP_FAILED);
	d->data = d->map + d->offset;
}

void net_dmabuf_free(struct net_dmabuf *d)
{
	munmap(d->map, d->map_size);
	close(d->fd);
}

uint64_t net_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void net_pair_make(struct net *n, int from, int to, struct net_pair *pair)
{
	uint64_t until = net_now_ms() + WAIT_MS;
	uint8_t handle[NET_HANDLE];
	void *listener;

	from = from < 2 ? n->place[from] : from;
	to = to < 2 ? n->place[to] : to;
	memset(handle, 0x5a, sizeof(handle));
	NET_NEED(net_listen(n, to, handle, &listener) == NET_OK, "%s", net_log_last());
	/* (of either family, behind magic, version, ports and nonce) */
	memcpy(&pair->port, handle + 24 + offsetof(struct sockaddr_in, sin_port),
	       sizeof(pair->port));
	pair->send = pair->recv = NULL;
	while (!pair->send || !pair->recv) {
		NET_NEED(net_now_ms() < until, "no connection");
		if (!pair->send) {
			NET_NEED(net_connect(n, from, handle, &pair->send) == NET_OK, "%s",
				 net_log_last());
		}
		if (!pair->recv) {
			NET_NEED(net_accept(n, listener, &pair->recv) == NET_OK, "%s",
				 net_log_last());
		}
		usleep(20);
	}
	CHECK_INT(net_close(n, NET_CLOSE_LISTEN, listener), NET_OK);
}

void net_pair_close(struct net *n, struct net_pair *pair)
{
	CHECK_INT(net_close(n, NET_CLOSE_SEND, pair->send), NET_OK);
	CHECK_INT(net_close(n, NET_CLOSE_RECV, pair->recv), NET_OK);
}

int net_wait(struct net *n, void *req, int *sizes)
{
	int done = 0;

	return NET_UNTIL(done, net_test(n, req, &done, sizes));
}

int net_send_wait(struct net *n, void *comm, void *data, size_t size, int tag, void *mr, void **req)
{
	uint64_t until = net_now_ms() + WAIT_MS;
	int rc;

	do {
		NET_NEED(net_now_ms() < until, "nothing can be sent");
		*req = NULL;
		rc = net_isend(n, comm, data, size, tag, mr, req);
		if (!rc && !*req) {
			usleep(20);
		}
	} while (!rc && !*req);
	return rc;
}

/* ---- processes ---- */

static void path_of(char *path, size_t size, const char *name)
{
	NEED(getenv("VC_DIR"));
	snprintf(path, size, "%s/%s", getenv("VC_DIR"), name);
}

void net_publish(const char *name, const void *bytes, size_t size)
{
	char path[512], part[520];
	FILE *f;

	path_of(path, sizeof(path), name);
	snprintf(part, sizeof(part), "%s.part", path);
	f = fopen(part, "w");
	NEED(f && fwrite(bytes, 1, size, f) == size && fclose(f) == 0);
	NEED(rename(part, path) == 0);
}

void net_await(const char *name, void *bytes, size_t size)
{
	uint64_t until = net_now_ms() + 20000;
	char path[512];
	FILE *f;

	path_of(path, sizeof(path), name);
	while (access(path, F_OK) != 0) {
		NET_NEED(net_now_ms() < until, "waiting for %s", name);
		usleep(1000);
	}
	f = fopen(path, "r");
	NEED(f && fread(bytes, 1, size, f) == size && fclose(f) == 0);
}

void net_live_in_child(void)
{
	pid_t pid = fork();
	int status = 0;

	NEED(pid >= 0);
	if (pid) {
		NEED(waitpid(pid, &status, 0) == pid);
		_exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 0 : 1);
	}
}

/* ---- bytes ---- */

void net_fill(uint8_t *at, size_t size, uint64_t seed)
{
	for (size_t i = 0; i < size; i++) {
		at[i] = net_byte(seed, i);
	}
}

size_t net_wrong(const uint8_t *at, size_t size, uint64_t seed)
{
	size_t wrong = 0;

	for (size_t i = 0; i < size; i++) {
		wrong += at[i] != net_byte(seed, i);
	}
	return wrong;
}

/* ---- counts ---- */

int net_counts_open(void)
{
	int fd = -1, found = 0;
	char path[64];
	struct stat st;
	glob_t all;

	snprintf(path, sizeof(path), "/dev/shm/nccl-ep-net.%d.*", (int)getpid());
	NEED(glob(path, 0, NULL, &all) == 0);
	for (size_t i = 0; i < all.gl_pathc; i++) {
		if (stat(all.gl_pathv[i], &st) == 0 && st.st_uid == geteuid()) {
			fd = open(all.gl_pathv[i], O_RDONLY);
			found++;
		}
	}
	globfree(&all);
	NEED(found == 1 && fd >= 0);
	return fd;
}

/* ---- faults that are said while the test runs ---- */

static char faults[] = "/tmp/net_faults_XXXXXX";

void net_faults_open(void)
{
	char rules[sizeof(faults) + 1];

	NEED(close(mkstemp(faults)) == 0);
	snprintf(rules, sizeof(rules), "@%s", faults);
	NEED(!setenv("VC_NIC_FAULTS", rules, 1));
}

void net_faults_write(const char *rules)
{
	char part[sizeof(faults) + 5];
	FILE *f;

	snprintf(part, sizeof(part), "%s.part", faults);
	f = fopen(part, "w");
	NEED(f && fputs(rules, f) >= 0 && fclose(f) == 0 && rename(part, faults) == 0);
}

void net_faults_set(const char *rules)
{
	net_faults_write(rules);
	usleep(200000);
}

void net_faults_close(void)
{
	unlink(faults);
}
