/* A stand-in for libnrt.so.1: real prototypes, structures, status codes and state machine; memory of the host instead of a
 * device; NEFFs that only the stand-in compiler packs, run by a function that the test registers. It is no emulator of a
 * device, and nothing that it returns is a measurement. Compiled by the tests; labelled by lqcd_standin_label.
 *
 * Fault injection: lqcd_standin_fault(function, code, skip, count) or LQCD_STANDIN_NRT_FAULT="function:code:skip:count";
 * lqcd_standin_delay(microseconds) makes launches slow; lqcd_standin_short_read(1) makes reads deliver half and fail.
 * Machine: LQCD_STANDIN_NRT_CORES (2), NEURON_RT_VISIBLE_CORES (a single range), LQCD_STANDIN_NRT_HBM (bytes per core),
 * LQCD_STANDIN_NRT_LNC (1), LQCD_STANDIN_NRT_TARGET, LQCD_STANDIN_NRT_LOCKS (a folder: one process owns a core).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

typedef enum {
  SUCCESS = 0, FAILURE = 1, INVALID = 2, INVALID_HANDLE = 3, RESOURCE = 4, TIMEOUT = 5, HW_ERROR = 6, QUEUE_FULL = 7,
  LOAD_NOT_ENOUGH_NC = 9, UNSUPPORTED_NEFF_VERSION = 10, UNINITIALIZED = 13, CLOSED = 14, NUM_ERR = 1003, NC_BUSY = 1005
} NRT_STATUS;

typedef struct { char name[256]; int32_t usage; size_t size; int32_t dtype; uint32_t *shape; uint32_t ndim; } nrt_tensor_info_t;
typedef struct { uint64_t tensor_count; nrt_tensor_info_t tensors[]; } nrt_tensor_info_array_t;
typedef struct { uint64_t major, minor, patch, maintenance; char rt_detail[128]; char git_hash[64]; } nrt_version_t;
typedef struct { uint32_t vnc; } nrt_model_info_t;
typedef struct { uint32_t family, size; char arch_name[16]; char device_revision[8]; } nrt_instance_info_t;
typedef struct { uint64_t offset, size; void *buffer; } nrt_tensor_batch_op_t;
typedef struct { const void *tensor; const nrt_tensor_batch_op_t *ops; uint32_t num_ops; } nrt_tensor_batch_t;
typedef struct { uint64_t physical_address; size_t size; int hbm_index; } nrt_tensor_device_allocation_info_t;
typedef struct { size_t bytes_used, bytes_limit; } nrt_vnc_memory_stats_t;
typedef struct { uint32_t *replica_group; uint32_t rank, rank_n, ctx_device_id, ctx_device_count, vnc; } nrt_cc_comm_t;
typedef struct { void **tensors; size_t num_tensors; } nrt_tensor_list_t;
typedef struct { uint64_t seq_id, error_code; } nrta_error_t;

/* name, size of the structure, then (field, offset) as text: the tests compare this compiler's answer with ctypes. */
#define F(s, f) #f, offsetof(s, f)
int lqcd_standin_layout(char *out, size_t n) {
  return snprintf(out, n,
    "nrt_tensor_info_t %zu %s %zu %s %zu %s %zu %s %zu %s %zu %s %zu\n"
    "nrt_tensor_info_array_t %zu %s %zu %s %zu\n"
    "nrt_version_t %zu %s %zu %s %zu %s %zu %s %zu %s %zu %s %zu\n"
    "nrt_model_info_t %zu %s %zu\n"
    "nrt_instance_info_t %zu %s %zu %s %zu %s %zu %s %zu\n"
    "nrt_tensor_batch_op_t %zu %s %zu %s %zu %s %zu\n"
    "nrt_tensor_batch_t %zu %s %zu %s %zu %s %zu\n"
    "nrt_tensor_device_allocation_info_t %zu %s %zu %s %zu %s %zu\n"
    "nrt_vnc_memory_stats_t %zu %s %zu %s %zu\n"
    "nrt_cc_comm_t %zu %s %zu %s %zu %s %zu %s %zu %s %zu %s %zu\n"
    "nrt_tensor_list_t %zu %s %zu %s %zu\n"
    "nrta_error_t %zu %s %zu %s %zu\n",
    sizeof(nrt_tensor_info_t), F(nrt_tensor_info_t, name), F(nrt_tensor_info_t, usage), F(nrt_tensor_info_t, size),
    F(nrt_tensor_info_t, dtype), F(nrt_tensor_info_t, shape), F(nrt_tensor_info_t, ndim),
    sizeof(nrt_tensor_info_array_t), F(nrt_tensor_info_array_t, tensor_count), F(nrt_tensor_info_array_t, tensors),
    sizeof(nrt_version_t), F(nrt_version_t, major), F(nrt_version_t, minor), F(nrt_version_t, patch),
    F(nrt_version_t, maintenance), F(nrt_version_t, rt_detail), F(nrt_version_t, git_hash),
    sizeof(nrt_model_info_t), F(nrt_model_info_t, vnc),
    sizeof(nrt_instance_info_t), F(nrt_instance_info_t, family), F(nrt_instance_info_t, size),
    F(nrt_instance_info_t, arch_name), F(nrt_instance_info_t, device_revision),
    sizeof(nrt_tensor_batch_op_t), F(nrt_tensor_batch_op_t, offset), F(nrt_tensor_batch_op_t, size), F(nrt_tensor_batch_op_t, buffer),
    sizeof(nrt_tensor_batch_t), F(nrt_tensor_batch_t, tensor), F(nrt_tensor_batch_t, ops), F(nrt_tensor_batch_t, num_ops),
    sizeof(nrt_tensor_device_allocation_info_t), F(nrt_tensor_device_allocation_info_t, physical_address),
    F(nrt_tensor_device_allocation_info_t, size), F(nrt_tensor_device_allocation_info_t, hbm_index),
    sizeof(nrt_vnc_memory_stats_t), F(nrt_vnc_memory_stats_t, bytes_used), F(nrt_vnc_memory_stats_t, bytes_limit),
    sizeof(nrt_cc_comm_t), F(nrt_cc_comm_t, replica_group), F(nrt_cc_comm_t, rank), F(nrt_cc_comm_t, rank_n),
    F(nrt_cc_comm_t, ctx_device_id), F(nrt_cc_comm_t, ctx_device_count), F(nrt_cc_comm_t, vnc),
    sizeof(nrt_tensor_list_t), F(nrt_tensor_list_t, tensors), F(nrt_tensor_list_t, num_tensors),
    sizeof(nrta_error_t), F(nrta_error_t, seq_id), F(nrta_error_t, error_code));
}

/* Objects carry a magic word, so that one that was freed is seen. */
#define TENSOR 0x7e50d00dULL
#define SET 0x5e7d00dULL
#define MODEL 0x30de1d00dULL
#define MAX_TENSORS 64
typedef struct tensor { uint64_t magic; int placement, core; size_t size; char *data; struct tensor *source; } tensor_t;
typedef struct { uint64_t magic; int n; char names[MAX_TENSORS][256]; tensor_t *tensors[MAX_TENSORS]; } set_t;
typedef struct {
  uint64_t magic; int core, n; nrt_tensor_info_t info[MAX_TENSORS]; uint32_t shapes[MAX_TENSORS][8];
  char *payload; size_t payload_size;
} model_t;
typedef int (*runner_t)(const char *payload, size_t payload_size, int n_in, const char **in_names, void **in_data, const uint64_t *in_sizes,
                        int n_out, const char **out_names, void **out_data, const uint64_t *out_sizes);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum { FRESH, OPEN, SHUT } state = FRESH;
static pid_t owner;
static runner_t runner;
static long live_tensors, live_sets, live_models, live_infos, made_tensors, made_sets, launches;
static long use_after_free;
static size_t used[256];
static int lock_files[256], short_read, delay_us;
static struct { char function[64]; int code, skip, count; } fault;

const char *lqcd_standin_label(void) { return "STAND-IN libnrt, no Neuron device"; }
void lqcd_standin_runner(runner_t r) { runner = r; }
void lqcd_standin_fault(const char *function, int code, int skip, int count) {
  snprintf(fault.function, sizeof fault.function, "%s", function);
  fault.code = code; fault.skip = skip; fault.count = count;
}
void lqcd_standin_delay(int microseconds) { delay_us = microseconds; }
void lqcd_standin_short_read(int on) { short_read = on; }
long lqcd_standin_count(const char *what) {
  if (!strcmp(what, "tensors")) return live_tensors;
  if (!strcmp(what, "sets")) return live_sets;
  if (!strcmp(what, "models")) return live_models;
  if (!strcmp(what, "infos")) return live_infos;
  if (!strcmp(what, "made_tensors")) return made_tensors;
  if (!strcmp(what, "made_sets")) return made_sets;
  if (!strcmp(what, "launches")) return launches;
  if (!strcmp(what, "use_after_free")) return use_after_free;
  return -1;
}
/* As if the process were new: for tests only, after everything was closed. */
void lqcd_standin_reset(void) {
  state = FRESH; short_read = delay_us = 0; memset(&fault, 0, sizeof fault); use_after_free = launches = made_tensors = made_sets = 0;
}

static long number(const char *name, long other) { const char *v = getenv(name); return v && *v ? strtol(v, NULL, 0) : other; }
static int total_cores(void) { return (int)number("LQCD_STANDIN_NRT_CORES", 2); }
static int first_core(void) { const char *v = getenv("NEURON_RT_VISIBLE_CORES"); return v && *v ? atoi(v) : 0; }
static int visible_cores(void) {
  const char *v = getenv("NEURON_RT_VISIBLE_CORES");
  if (v && *v) { const char *dash = strchr(v, '-'); int last = dash ? atoi(dash + 1) : atoi(v); return last - atoi(v) + 1; }
  long n = number("NEURON_RT_NUM_CORES", 0);
  return n > 0 ? (int)n : total_cores();
}
static int injected(const char *function) {
  static int read_environment;
  if (!read_environment) {
    read_environment = 1;
    const char *v = getenv("LQCD_STANDIN_NRT_FAULT");
    if (v) sscanf(v, "%63[^:]:%d:%d:%d", fault.function, &fault.code, &fault.skip, &fault.count);
  }
  if (!fault.count || strcmp(function, fault.function)) return 0;
  if (fault.skip > 0) { fault.skip--; return 0; }
  fault.count--;
  return fault.code;
}
static int gate(const char *function) {
  if (state == OPEN && getpid() != owner) return FAILURE;
  if (state == SHUT) return CLOSED;
  if (state == FRESH) return UNINITIALIZED;
  return injected(function);
}
#define GATE() do { int g_ = gate(__func__); if (g_) return g_; } while (0)

NRT_STATUS nrt_init(int framework, const char *fw, const char *fal) {
  if (state == OPEN && getpid() != owner) return FAILURE;
  if (state == SHUT) return CLOSED;
  int f = injected(__func__);
  if (f) return f;
  if (state == OPEN || framework < 1 || framework > 5 || !fw || !fal) return INVALID;
  int n = visible_cores(), first = first_core();
  if (n < 1 || first + n > total_cores()) return INVALID;
  const char *folder = getenv("LQCD_STANDIN_NRT_LOCKS");
  for (int k = 0; k < n; k++) {
    lock_files[k] = -1;
    if (!folder || !*folder) continue;
    char path[4096];
    snprintf(path, sizeof path, "%s/core%d", folder, first + k);
    lock_files[k] = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (lock_files[k] < 0 || flock(lock_files[k], LOCK_EX | LOCK_NB)) {
      for (int j = 0; j <= k; j++) if (lock_files[j] >= 0) close(lock_files[j]);
      return NC_BUSY;
    }
  }
  memset(used, 0, sizeof used);
  state = OPEN; owner = getpid();
  return SUCCESS;
}
void nrt_close(void) {
  if (state != OPEN || getpid() != owner) return;
  for (int k = 0; k < visible_cores(); k++) if (lock_files[k] >= 0) close(lock_files[k]);
  state = SHUT;
}
NRT_STATUS nrt_get_version(nrt_version_t *v, size_t size) {
  if (!v || size != sizeof *v) return INVALID;
  memset(v, 0, size); v->major = 2; v->minor = 32; snprintf(v->rt_detail, 128, "%s", lqcd_standin_label());
  return SUCCESS;
}
NRT_STATUS nrt_get_total_vnc_count(uint32_t *n) { if (!n) return INVALID; *n = total_cores(); return SUCCESS; }
NRT_STATUS nrt_get_total_nc_count(uint32_t *n) { return nrt_get_total_vnc_count(n); }
NRT_STATUS nrt_get_visible_vnc_count(uint32_t *n) { if (!n) return INVALID; *n = visible_cores(); return SUCCESS; }
NRT_STATUS nrt_get_visible_nc_count(uint32_t *n) { return nrt_get_visible_vnc_count(n); }
NRT_STATUS nrt_get_vnc_memory_stats(uint32_t core, nrt_vnc_memory_stats_t *s, size_t in, size_t *out) {
  GATE();
  if (!s || !out || in < sizeof *s || core >= (uint32_t)visible_cores()) return INVALID;
  s->bytes_used = used[core]; s->bytes_limit = number("LQCD_STANDIN_NRT_HBM", 1L << 30); *out = sizeof *s;
  return SUCCESS;
}

/* -- models ------------------------------------------------------------------------------------------------------- */

static const char *member(const char *tar, size_t size, const char *name, size_t *length) {
  for (size_t at = 0; at + 512 <= size && tar[at];) {
    size_t n = strtoul(tar + at + 124, NULL, 8);
    if (at + 512 + n > size) return NULL;
    if (!strncmp(tar + at, name, 100)) { *length = n; return tar + at + 512; }
    at += 512 + (n + 511) / 512 * 512;
  }
  return NULL;
}
static const int item_bytes[16] = {0, 8, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 8, 1, 1, 1};

NRT_STATUS nrt_load(const void *neff, size_t size, int32_t core, int32_t count, model_t **out) {
  GATE();
  if (!neff || !out || (count != -1 && count != 1)) return INVALID;
  if (core == -1) core = 0;
  if (core < 0 || core >= visible_cores()) return LOAD_NOT_ENOUGH_NC;
  uint64_t head[5]; uint32_t lnc;
  if (size < 1024) return INVALID;
  memcpy(head, neff, sizeof head); memcpy(&lnc, (const char *)neff + 552, 4);
  if (head[1] != 1024 || size < 1024 + head[2]) return INVALID;
  if (head[3] != 2) return UNSUPPORTED_NEFF_VERSION;
  if ((lnc ? lnc : 1) != (uint32_t)number("LQCD_STANDIN_NRT_LNC", 1)) return INVALID;
  const char *tar = (const char *)neff + 1024;
  size_t n_text, n_payload;
  const char *text = member(tar, head[2], "standin/tensors.txt", &n_text);
  const char *payload = member(tar, head[2], "standin/kernel.json", &n_payload);
  if (!text || !payload) return UNSUPPORTED_NEFF_VERSION;  /* a real NEFF does not run here */
  model_t *m = calloc(1, sizeof *m);
  m->magic = MODEL; m->core = core;
  char *copy = strndup(text, n_text), *save = NULL, target[32] = "";
  for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    char usage[8], name[256]; int dtype, ndim, used_chars;
    if (sscanf(line, "target %31s", target) == 1) continue;
    if (m->n == MAX_TENSORS || sscanf(line, "%7s %255s %d %d%n", usage, name, &dtype, &ndim, &used_chars) != 4 || ndim > 8) {
      free(copy); free(m); return INVALID;
    }
    nrt_tensor_info_t *t = &m->info[m->n];
    snprintf(t->name, 256, "%s", name);
    t->usage = strcmp(usage, "in") != 0; t->dtype = dtype; t->ndim = ndim; t->shape = m->shapes[m->n]; t->size = item_bytes[dtype & 15];
    const char *rest = line + used_chars;
    for (int k = 0; k < ndim; k++) { t->shape[k] = strtoul(rest, (char **)&rest, 10); t->size *= t->shape[k]; }
    m->n++;
  }
  free(copy);
  const char *machine = getenv("LQCD_STANDIN_NRT_TARGET");
  if (machine && *machine && strcmp(machine, target)) { free(m); return UNSUPPORTED_NEFF_VERSION; }
  m->payload = malloc(n_payload + 1); memcpy(m->payload, payload, n_payload); m->payload[n_payload] = 0; m->payload_size = n_payload;
  pthread_mutex_lock(&lock); live_models++; pthread_mutex_unlock(&lock);
  *out = m;
  return SUCCESS;
}
NRT_STATUS nrt_unload(model_t *m) {
  GATE();
  if (!m || m->magic != MODEL) { use_after_free++; return INVALID_HANDLE; }
  m->magic = 0; free(m->payload); free(m);
  pthread_mutex_lock(&lock); live_models--; pthread_mutex_unlock(&lock);
  return SUCCESS;
}
NRT_STATUS nrt_get_model_tensor_info(model_t *m, nrt_tensor_info_array_t **out) {
  GATE();
  if (!m || m->magic != MODEL) return INVALID_HANDLE;
  nrt_tensor_info_array_t *a = malloc(sizeof *a + m->n * sizeof(nrt_tensor_info_t));
  a->tensor_count = m->n;
  memcpy(a->tensors, m->info, m->n * sizeof(nrt_tensor_info_t));
  for (int k = 0; k < m->n; k++) { a->tensors[k].shape = malloc(8 * sizeof(uint32_t)); memcpy(a->tensors[k].shape, m->shapes[k], 32); }
  pthread_mutex_lock(&lock); live_infos++; pthread_mutex_unlock(&lock);
  *out = a;
  return SUCCESS;
}
NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t *a) {
  if (!a) return INVALID;
  for (uint64_t k = 0; k < a->tensor_count; k++) free(a->tensors[k].shape);
  free(a);
  pthread_mutex_lock(&lock); live_infos--; pthread_mutex_unlock(&lock);
  return SUCCESS;
}
NRT_STATUS nrt_get_model_info(const model_t *m, nrt_model_info_t *info, size_t in, size_t *out) {
  GATE();
  if (!m || m->magic != MODEL) return INVALID_HANDLE;
  if (!info || !out || in < sizeof *info) return INVALID;
  info->vnc = m->core; *out = sizeof *info;
  return SUCCESS;
}

/* -- tensors ------------------------------------------------------------------------------------------------------ */

static tensor_t *new_tensor(int placement, int core, size_t size) {
  tensor_t *t = calloc(1, sizeof *t);
  t->magic = TENSOR; t->placement = placement; t->core = core; t->size = size;
  pthread_mutex_lock(&lock); live_tensors++; made_tensors++; pthread_mutex_unlock(&lock);
  return t;
}
NRT_STATUS nrt_tensor_allocate(int placement, int core, size_t size, const char *name, tensor_t **out) {
  GATE();
  if (!out || !size || placement < 0 || placement > 1 || !name) return INVALID;
  if (placement == 1 ? core != -1 : core < 0 || core >= visible_cores()) return INVALID;
  if (placement == 0 && used[core] + size > (size_t)number("LQCD_STANDIN_NRT_HBM", 1L << 30)) return RESOURCE;
  tensor_t *t = new_tensor(placement, core, size);
  t->data = malloc(size);
  memset(t->data, 0xff, size);  /* nothing promises zeros: all ones is NaN in every float type */
  if (placement == 0) { pthread_mutex_lock(&lock); used[core] += size; pthread_mutex_unlock(&lock); }
  *out = t;
  return SUCCESS;
}
void nrt_tensor_free(tensor_t **t) {
  if (state != OPEN || getpid() != owner || !t || !*t) return;
  if ((*t)->magic != TENSOR) { use_after_free++; return; }
  (*t)->magic = 0;
  pthread_mutex_lock(&lock);
  live_tensors--;
  if (!(*t)->source && (*t)->placement == 0) used[(*t)->core] -= (*t)->size;
  pthread_mutex_unlock(&lock);
  if (!(*t)->source) free((*t)->data);
  (*t)->data = NULL;  /* the shell is kept, so that a later use is seen and not a crash */
  *t = NULL;
}
static int bad(const tensor_t *t) { if (!t || t->magic != TENSOR) { use_after_free++; return 1; } return 0; }
NRT_STATUS nrt_tensor_write(tensor_t *t, const void *from, size_t offset, size_t size) {
  GATE();
  if (bad(t)) return INVALID_HANDLE;
  if (!from || offset + size > t->size) return INVALID;
  memcpy(t->data + offset, from, size);
  return SUCCESS;
}
NRT_STATUS nrt_tensor_read(const tensor_t *t, void *to, size_t offset, size_t size) {
  GATE();
  if (bad(t)) return INVALID_HANDLE;
  if (!to || offset + size > t->size) return INVALID;
  memcpy(to, t->data + offset, short_read ? size / 2 : size);
  return short_read ? FAILURE : SUCCESS;
}
NRT_STATUS nrt_tensor_copy(const tensor_t *from, size_t a, tensor_t *to, size_t b, size_t size) {
  GATE();
  if (bad(from) || bad(to)) return INVALID_HANDLE;
  if (a + size > from->size || b + size > to->size) return INVALID;
  if (from->placement == 0 && to->placement == 0 && from->core != to->core) return INVALID;  /* no peer copies */
  memmove(to->data + b, from->data + a, size);
  return SUCCESS;
}
NRT_STATUS nrt_tensor_memset(tensor_t *t, uint64_t offset, int value, size_t size) {
  GATE();
  if (bad(t)) return INVALID_HANDLE;
  if (offset + size > t->size) return INVALID;
  memset(t->data + offset, value, size);
  return SUCCESS;
}
size_t nrt_tensor_get_size(const tensor_t *t) { if (!t) abort(); return t->size; }
void *nrt_tensor_get_va(const tensor_t *t) { return t ? t->data : NULL; }
NRT_STATUS nrt_tensor_allocate_slice(tensor_t *source, size_t offset, size_t size, const char *name, tensor_t **out) {
  GATE();
  if (bad(source)) return INVALID_HANDLE;
  if (!out || !name || offset + size > source->size) return INVALID;
  tensor_t *t = new_tensor(source->placement, source->core, size);
  t->source = source; t->data = source->data + offset;
  *out = t;
  return SUCCESS;
}
NRT_STATUS nrt_tensor_get_device_allocation_info(const tensor_t *t, nrt_tensor_device_allocation_info_t *i) {
  GATE();
  if (bad(t)) return INVALID_HANDLE;
  if (!i || t->placement) return INVALID;
  i->physical_address = (uint64_t)(uintptr_t)t->data; i->size = t->size; i->hbm_index = t->core / 2;
  return SUCCESS;
}

/* -- sets and launches --------------------------------------------------------------------------------------------- */

NRT_STATUS nrt_allocate_tensor_set(set_t **out) {
  GATE();
  if (!out) return INVALID;
  *out = calloc(1, sizeof **out);
  (*out)->magic = SET;
  pthread_mutex_lock(&lock); live_sets++; made_sets++; pthread_mutex_unlock(&lock);
  return SUCCESS;
}
void nrt_destroy_tensor_set(set_t **s) {
  if (state != OPEN || getpid() != owner || !s || !*s) return;
  if ((*s)->magic != SET) { use_after_free++; return; }
  (*s)->magic = 0; free(*s); *s = NULL;
  pthread_mutex_lock(&lock); live_sets--; pthread_mutex_unlock(&lock);
}
NRT_STATUS nrt_add_tensor_to_tensor_set(set_t *s, const char *name, tensor_t *t) {
  GATE();
  if (!s || s->magic != SET || bad(t)) return INVALID_HANDLE;
  if (!name) return INVALID;
  int k = 0;
  while (k < s->n && strcmp(s->names[k], name)) k++;
  if (k == MAX_TENSORS) return RESOURCE;
  if (k == s->n) s->n++;
  snprintf(s->names[k], 256, "%s", name); s->tensors[k] = t;
  return SUCCESS;
}
NRT_STATUS nrt_get_tensor_from_tensor_set(set_t *s, const char *name, tensor_t **out) {
  GATE();
  if (!s || s->magic != SET) return INVALID_HANDLE;
  for (int k = 0; k < s->n; k++) if (!strcmp(s->names[k], name)) { *out = s->tensors[k]; return SUCCESS; }
  return INVALID;
}
static int gather(model_t *m, set_t *s, int usage, const char **names, void **data, uint64_t *sizes) {
  int n = 0;
  for (int k = 0; k < m->n; k++) {
    if (m->info[k].usage != usage) continue;
    int j = 0;
    while (j < s->n && strcmp(s->names[j], m->info[k].name)) j++;
    if (j == s->n) return -INVALID;
    tensor_t *t = s->tensors[j];
    if (bad(t)) return -INVALID_HANDLE;
    if (t->size != m->info[k].size || (t->placement == 0 && t->core != m->core)) return -INVALID;
    names[n] = m->info[k].name; data[n] = t->data; sizes[n] = t->size; n++;
  }
  return n == s->n ? n : -INVALID;  /* a name that the model does not have */
}
static int run(model_t *m, set_t *in, set_t *out) {
  const char *names[2][MAX_TENSORS]; void *data[2][MAX_TENSORS]; uint64_t sizes[2][MAX_TENSORS];
  if (!m || m->magic != MODEL || !in || in->magic != SET || !out || out->magic != SET) { use_after_free++; return INVALID_HANDLE; }
  int n = gather(m, in, 0, names[0], data[0], sizes[0]);
  int k = gather(m, out, 1, names[1], data[1], sizes[1]);
  if (n < 0) return -n;
  if (k < 0) return -k;
  if (!runner) return FAILURE;
  if (delay_us) usleep(delay_us);
  pthread_mutex_lock(&lock); launches++; pthread_mutex_unlock(&lock);
  long limit = number("NEURON_RT_EXEC_TIMEOUT", 0);
  if (limit && delay_us > 1000000L * limit) return TIMEOUT;
  return runner(m->payload, m->payload_size, n, names[0], data[0], sizes[0], k, names[1], data[1], sizes[1]);
}
NRT_STATUS nrt_execute(model_t *m, set_t *in, set_t *out) { GATE(); return run(m, in, out); }
NRT_STATUS nrt_execute_repeat(model_t *m, set_t *in, set_t *out, int count) {
  GATE();
  int code = SUCCESS;
  for (int k = 0; k < count && !code; k++) code = run(m, in, out);
  return code;
}

/* -- asynchronous launches: one queue, one thread, first in first out ---------------------------------------------- */

#ifndef LQCD_STANDIN_WITHOUT_ASYNC
#define DEPTH 64
typedef struct { nrta_error_t list[DEPTH]; size_t n; } tracker_t;
typedef struct { model_t *m; set_t *in, *out; tracker_t *tracker; uint64_t seq; } request_t;
static request_t ring[DEPTH];
static uint64_t scheduled, finished;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static int worker_started;
#define SEQUENCE(n) ((3ULL << 48) | (n))

static void *work(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&queue_lock);
    while (finished == scheduled) pthread_cond_wait(&wake, &queue_lock);
    request_t r = ring[finished % DEPTH];
    pthread_mutex_unlock(&queue_lock);
    int code = gate("nrta_execute");
    if (!code) code = run(r.m, r.in, r.out);
    pthread_mutex_lock(&queue_lock);
    if (code && r.tracker->n < DEPTH) r.tracker->list[r.tracker->n++] = (nrta_error_t){r.seq, (uint64_t)code};
    finished++;
    pthread_mutex_unlock(&queue_lock);
  }
  return NULL;
}
NRT_STATUS nrta_error_tracker_create(uint32_t core, tracker_t **out) {
  GATE();
  if (!out || core >= (uint32_t)visible_cores()) return INVALID;
  *out = calloc(1, sizeof **out);
  return SUCCESS;
}
void nrta_error_tracker_destroy(tracker_t *t) { free(t); }
NRT_STATUS nrta_error_tracker_get_list(tracker_t *t, const nrta_error_t **list, size_t *count) {
  GATE();
  if (!t || !list || !count) return INVALID;
  *list = t->list; *count = t->n;
  return SUCCESS;
}
NRT_STATUS nrta_execute_schedule(model_t *m, set_t *in, set_t *out, int queue, tracker_t *tracker, uint64_t *seq) {
  GATE();
  if (queue || !tracker || !seq) return INVALID;
  pthread_mutex_lock(&queue_lock);
  if (scheduled - finished == DEPTH) { pthread_mutex_unlock(&queue_lock); return QUEUE_FULL; }
  if (!worker_started) { pthread_t t; worker_started = 1; pthread_create(&t, NULL, work, NULL); pthread_detach(t); }
  *seq = SEQUENCE(scheduled + 1);
  ring[scheduled % DEPTH] = (request_t){m, in, out, tracker, *seq};
  scheduled++;
  pthread_cond_signal(&wake);
  pthread_mutex_unlock(&queue_lock);
  return SUCCESS;
}
NRT_STATUS nrta_is_completed(uint64_t seq, bool *done) {
  GATE();
  if (!done || seq >> 48 != 3) return INVALID;
  pthread_mutex_lock(&queue_lock);
  *done = (seq & 0xffffffffffffULL) <= finished;
  pthread_mutex_unlock(&queue_lock);
  return SUCCESS;
}
#endif
