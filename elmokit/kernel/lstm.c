/* The recurrence of an LSTM with projection and clipping, for inference on a CPU (Sak et al. 2014; Peters et al. 2018).
 *
 * library.py hands over raw pointers: the input products of all tokens step after step, and weights that
 * `elmokit_pack` has laid out. Everything between two steps is fused: recurrent product, gates, cell and its clip,
 * projection and its clip. Weights are float32, bfloat16 or int8; cells and sums that are kept are float32.
 * lstm_path.h holds the recurrence itself and is included once for each instruction set and weight format; which one
 * runs is chosen from what the CPU can do. One call is one thread; nothing is shared between calls.
 *
 * A packed layer is a `struct layer`, the scales of int8, and the weights as 32-bit words in the order in which a step
 * reads them, so that a single row streams through memory once:
 *   for each chunk of CHUNK cells:
 *     for each block of `lanes` cells:     [hidden_dim / group][4 gates][lanes]
 *     for each block of 4 lanes outputs:   [cells of the chunk / group][4][lanes]      (where there is a projection)
 * A word holds `group` neighbouring inputs of one output: 1 float32, 2 bfloat16 or 4 int8, the first in the low bits.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Older compilers lack an instruction set; on Windows GCC does not align vectors of 32 bytes and more on the stack. */
#if defined(__x86_64__) && !defined(_WIN32) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)

enum { CHUNK = 256 };      /* cells between two visits of the projection: their outputs and weights stay in the cache */
enum { ALIGNMENT = 64 };
enum { FAR = 12 << 20 };     /* bytes of a layer that will not stay in a cache from step to step */
#define FLOAT32 0
#define BFLOAT16 1
#define INT8 2
enum { PLAIN = 1, AVX2 = 2, AVX512 = 4, AVX512_BF16 = 8, AVX512_VNNI = 16, AVX_VNNI = 32 };

/* At the head of a packed layer; places are in bytes from there. */
struct layer {
    int32_t kernel; /* in `kernels` */
    int32_t format, lanes, group;
    int64_t cell_dim, hidden_dim, projected;
    int64_t blocks;     /* of `lanes` cells */
    int64_t out_blocks; /* of 4 lanes outputs of the projection; 0 without one */
    int64_t groups;     /* of inputs of the recurrent product */
    int64_t gate_scales, gate_offsets, out_scales, out_offsets; /* of int8: [blocks][4][lanes], [out_blocks][4][lanes] */
    int64_t words, bytes;
};

/* What one call works on. A row's place in the batch is first + i * stride for i < count. */
struct job {
    const float *gates; /* (N, 4 cell_dim) */
    const int64_t *batch_sizes;
    int64_t steps, first, stride, count;
    float cell_clip, proj_clip; /* infinity for none */
    float *hidden, *cell;       /* (B, hidden_dim), (B, cell_dim): at the start, and at each row's end afterwards */
    float *out;                 /* (N, hidden_dim) */
};

static inline int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t rounded_up(int64_t a, int64_t b) { return divided_up(a, b) * b; }

/* How many of the job's rows go into a step with `batch` rows. */
static inline int64_t rows_alive(const struct job *job, int64_t batch)
{
    int64_t alive = batch > job->first ? divided_up(batch - job->first, job->stride) : 0;
    return alive < job->count ? alive : job->count;
}

/* Rows that are worked on together; the rows of a step are shared out evenly. */
struct tile {
    int64_t row; /* the first */
    int rows;    /* 0 after the last tile */
    int64_t index, left;
    int64_t each, more; /* rows of those that are left; how many have one more */
};

static inline struct tile next_tile(struct tile tile)
{
    tile.row += tile.rows;
    tile.rows = tile.left > 0 ? (int)(tile.each + (tile.more > 0)) : 0;
    tile.index++, tile.left--, tile.more--;
    return tile;
}

static inline struct tile first_tile(int64_t rows, int64_t tiles)
{
    return next_tile((struct tile){.index = -1, .left = tiles, .each = rows / tiles, .more = rows % tiles});
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Round to the nearest, ties to even. */
static inline uint32_t bfloat16_of(float x)
{
    uint32_t bits = bits_of(x);
    if (x != x) return (bits >> 16) | 0x40;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

/* For each instruction set: the lanes of a vector, and of how many rows its registers hold four sums each. */

#define TARGET
#define LANES 4
#if defined(__aarch64__)
#define ROWS 6
#else
#define ROWS 2
#endif
#define NAME plain_float32
#define FORMAT FLOAT32
#include "lstm_path.h"
#define NAME plain_bfloat16
#define FORMAT BFLOAT16
#include "lstm_path.h"
#define NAME plain_int8
#define FORMAT INT8
#include "lstm_path.h"
#undef TARGET
#undef LANES
#undef ROWS

#ifdef X86

#define LANES 8
#define ROWS 3
#define CLAMP(x, lo, hi) _mm256_min_ps(hi, _mm256_max_ps(lo, x)) /* in this order a NaN stays */
#define TARGET __attribute__((target("avx2,fma")))
#define NAME avx2_float32
#define FORMAT FLOAT32
#include "lstm_path.h"
#define NAME avx2_bfloat16
#define FORMAT BFLOAT16
#include "lstm_path.h"
#define NAME avx2_int8
#define FORMAT INT8
#include "lstm_path.h"
#undef TARGET
#define TARGET __attribute__((target("avx2,fma,avxvnni")))
#define DOT(sums, words, inputs) _mm256_dpbusd_avx_epi32((__m256i)(sums), (__m256i)(inputs), (__m256i)(words))
#define NAME avx2_int8_dot
#define FORMAT INT8
#include "lstm_path.h"
#undef DOT
#undef TARGET
#undef CLAMP
#undef ROWS
#undef LANES

#define LANES 16
#define ROWS 6
#define CLAMP(x, lo, hi) _mm512_min_ps(hi, _mm512_max_ps(lo, x))
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define NAME avx512_float32
#define FORMAT FLOAT32
#include "lstm_path.h"
#define NAME avx512_bfloat16
#define FORMAT BFLOAT16
#include "lstm_path.h"
#define NAME avx512_int8
#define FORMAT INT8
#include "lstm_path.h"
#undef TARGET
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,avx512bf16")))
#define DOT(sums, words, inputs) _mm512_dpbf16_ps(sums, (__m512bh)(words), (__m512bh)(inputs))
#define NAME avx512_bfloat16_dot
#define FORMAT BFLOAT16
#include "lstm_path.h"
#undef DOT
#undef TARGET
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,avx512vnni")))
#define DOT(sums, words, inputs) _mm512_dpbusd_epi32((__m512i)(sums), (__m512i)(inputs), (__m512i)(words))
#define NAME avx512_int8_dot
#define FORMAT INT8
#include "lstm_path.h"
#undef DOT
#undef TARGET
#undef CLAMP
#undef ROWS
#undef LANES

#endif

/* The best first, for each format. */
static const struct kernel {
    int32_t needs; /* of what `elmokit_features` gives */
    int32_t format, lanes;
    int (*run)(const struct layer *, const struct job *);
} kernels[] = {
#ifdef X86
    {AVX512, FLOAT32, 16, avx512_float32},
    {AVX512 | AVX512_BF16, BFLOAT16, 16, avx512_bfloat16_dot},
    {AVX512, BFLOAT16, 16, avx512_bfloat16},
    {AVX512 | AVX512_VNNI, INT8, 16, avx512_int8_dot},
    {AVX512, INT8, 16, avx512_int8},
    {AVX2, FLOAT32, 8, avx2_float32},
    {AVX2, BFLOAT16, 8, avx2_bfloat16},
    {AVX2 | AVX_VNNI, INT8, 8, avx2_int8_dot},
    {AVX2, INT8, 8, avx2_int8},
#endif
    {PLAIN, FLOAT32, 4, plain_float32},
    {PLAIN, BFLOAT16, 4, plain_bfloat16},
    {PLAIN, INT8, 4, plain_int8},
};

/* What this CPU and system can run. */
EXPORT int32_t elmokit_features(void)
{
    int32_t features = PLAIN;
#ifdef X86
    unsigned eax, ebx, ecx, edx;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        features |= AVX2;
        if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1 << 4)) features |= AVX_VNNI;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) {
        features |= AVX512;
        if (__builtin_cpu_supports("avx512bf16")) features |= AVX512_BF16;
        if (__builtin_cpu_supports("avx512vnni")) features |= AVX512_VNNI;
    }
#endif
    return features;
}

/* The layer of these dimensions for the best kernel that the features allow. */
static struct layer layer_of(int32_t features, int32_t format, int64_t cell_dim, int64_t hidden_dim, int64_t projected)
{
    struct layer layer = {.format = format, .cell_dim = cell_dim, .hidden_dim = hidden_dim, .projected = projected};
    while (kernels[layer.kernel].format != format || (kernels[layer.kernel].needs & ~features)) layer.kernel++;
    layer.lanes = kernels[layer.kernel].lanes;
    layer.group = format == INT8 ? 4 : format == BFLOAT16 ? 2 : 1;
    layer.blocks = divided_up(cell_dim, layer.lanes);
    layer.out_blocks = projected ? divided_up(hidden_dim, 4 * layer.lanes) : 0;
    layer.groups = divided_up(hidden_dim, layer.group);
    int64_t block = 4 * layer.lanes * sizeof(float), scales = format == INT8 ? block : 0;
    layer.gate_scales = rounded_up(sizeof layer, ALIGNMENT);
    layer.gate_offsets = layer.gate_scales + layer.blocks * scales;
    layer.out_scales = layer.gate_offsets + layer.blocks * scales;
    layer.out_offsets = layer.out_scales + layer.out_blocks * scales;
    layer.words = rounded_up(layer.out_offsets + layer.out_blocks * scales, ALIGNMENT);
    int64_t cells = layer.blocks * layer.lanes;
    layer.bytes = layer.words + block * (layer.blocks * layer.groups + layer.out_blocks * cells / layer.group);
    return layer;
}

EXPORT int64_t elmokit_packed_bytes(int32_t features, int32_t format, int64_t cell_dim, int64_t hidden_dim,
                                    int64_t projected)
{
    return layer_of(features, format, cell_dim, hidden_dim, projected).bytes;
}

/* Lay out rows of a weight matrix, `inputs` (of which the first `width` exist) of each, in words. A null row is zero. */
static uint32_t *pack_block(const struct layer *layer, const float **rows, const float *scales, int64_t width,
                            int64_t inputs, uint32_t *to)
{
    int columns = 4 * layer->lanes, group = layer->group;
    for (int64_t k = 0; k < inputs; k += group)
        for (int column = 0; column < columns; column++) {
            uint32_t word = 0;
            for (int j = 0; j < group && k + j < width && rows[column]; j++) {
                float weight = rows[column][k + j];
                if (layer->format == FLOAT32) word = bits_of(weight);
                else if (layer->format == BFLOAT16) word |= bfloat16_of(weight) << (16 * j);
                else word |= ((uint32_t)lrintf(weight / scales[column]) & 0xff) << (8 * j);
            }
            *to++ = word;
        }
    return to;
}

/* The scale of a row's int8 weights, and what the inputs' offset of 128 adds to its sums. */
static void scale_row(const float *row, int64_t width, float *scale, int32_t *offset)
{
    float largest = 0;
    for (int64_t k = 0; k < width; k++) largest = fmaxf(largest, fabsf(row[k]));
    *scale = largest > 1e-30f ? largest / 127 : 1; /* below, a quotient could overflow */
    int64_t sum = 0;
    for (int64_t k = 0; k < width; k++) sum += lrintf(row[k] / *scale);
    *offset = (int32_t)(128 * sum);
}

/* Pack weight_hh (4 cell_dim, hidden_dim) and weight_hr (hidden_dim, cell_dim) or null into `elmokit_packed_bytes`
 * bytes at an address that ALIGNMENT divides. Weights are finite. */
EXPORT void elmokit_pack(int32_t features, int32_t format, int64_t cell_dim, int64_t hidden_dim, const float *weight_hh,
                         const float *weight_hr, char *packed)
{
    struct layer layer = layer_of(features, format, cell_dim, hidden_dim, weight_hr != NULL);
    memset(packed, 0, layer.words);
    memcpy(packed, &layer, sizeof layer);
    uint32_t *words = (uint32_t *)(packed + layer.words);
    int lanes = layer.lanes;
    const float *rows[4 * 16];
    float *scales = NULL;
    int32_t *offsets;
    for (int64_t start = 0; start < layer.blocks * lanes; start += CHUNK) {
        int64_t end = start + CHUNK < layer.blocks * lanes ? start + CHUNK : layer.blocks * lanes;
        for (int64_t first = start; first < end; first += lanes) {
            scales = (float *)(packed + layer.gate_scales) + 4 * first;
            offsets = (int32_t *)(packed + layer.gate_offsets) + 4 * first;
            for (int column = 0; column < 4 * lanes; column++) {
                int64_t cell = first + column % lanes;
                rows[column] = cell < cell_dim ? weight_hh + (column / lanes * cell_dim + cell) * hidden_dim : NULL;
                if (format == INT8 && rows[column]) scale_row(rows[column], hidden_dim, &scales[column], &offsets[column]);
            }
            words = pack_block(&layer, rows, scales, hidden_dim, layer.groups * layer.group, words);
        }
        for (int64_t block = 0; block < layer.out_blocks; block++) {
            scales = (float *)(packed + layer.out_scales) + 4 * lanes * block;
            offsets = (int32_t *)(packed + layer.out_offsets) + 4 * lanes * block;
            for (int column = 0; column < 4 * lanes; column++) {
                int64_t output = 4 * lanes * block + column;
                rows[column] = output < hidden_dim ? weight_hr + output * cell_dim : NULL;
                if (format == INT8 && rows[column] && start == 0)
                    scale_row(rows[column], cell_dim, &scales[column], &offsets[column]);
                if (rows[column]) rows[column] += start;
            }
            words = pack_block(&layer, rows, scales, cell_dim - start, end - start, words);
        }
    }
}

/* Run a packed layer; 0, or 1 where there is no memory. */
EXPORT int elmokit_run(const struct layer *layer, const float *gates, const int64_t *batch_sizes, int64_t steps,
                       int64_t first, int64_t stride, int64_t count, float cell_clip, float proj_clip, float *hidden,
                       float *cell, float *out)
{
    struct job job = {gates, batch_sizes, steps, first, stride, count, cell_clip, proj_clip, hidden, cell, out};
    return kernels[layer->kernel].run(layer, &job);
}
