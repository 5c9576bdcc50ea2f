/* The recurrence for one instruction set and weight format; included by lstm.c, which defines
 *   NAME, FORMAT   of the function that this makes, and of the weights
 *   TARGET         attribute of functions that may use the instruction set
 *   LANES, ROWS    of a vector; rows whose four sums of LANES fit into registers
 *   CLAMP          min and max of vectors, where the instruction set has them
 *   DOT            adds products of whole words, where the CPU has such an instruction; inputs then have the format of
 *                  the weights. Otherwise inputs are float32, and weights are widened.
 */

#define N(name) PASTE(NAME, name)
#define FLOATS N(floats)
#define INTS N(ints)
#define WORDS N(words)
#define LOOSE N(loose)
#define INPUT N(input)
#define SUMS N(sums)

typedef float FLOATS __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t INTS __attribute__((vector_size(4 * LANES), may_alias));
typedef uint32_t WORDS __attribute__((vector_size(4 * LANES), may_alias));
typedef float LOOSE __attribute__((vector_size(4 * LANES), may_alias, aligned(4)));

#if defined(DOT) && FORMAT == INT8
typedef uint8_t INPUT; /* 128 more than the signed value */
typedef INTS SUMS;
#elif defined(DOT)
typedef uint16_t INPUT;
typedef FLOATS SUMS;
#else
typedef float INPUT;
typedef FLOATS SUMS;
#endif
#if FORMAT == FLOAT32
#define GROUP 1
#elif FORMAT == BFLOAT16
#define GROUP 2
#else
#define GROUP 4
#endif
typedef INPUT N(inputs) __attribute__((vector_size(sizeof(INPUT) * LANES), may_alias, aligned(sizeof(INPUT))));

/* What one call works with; rows of these are the job's rows. */
struct N(work) {
    const struct layer *layer;
    const struct job *job;
    INPUT *hidden;  /* [input_stride]: what goes into the recurrent product */
    INPUT *outputs; /* [output_stride]: o * tanh(c) of a chunk, what goes into the projection */
    float *results; /* [result_stride]: sums of the projection, then the next hidden */
    float *scales;  /* of int8 `hidden` */
    SUMS *sums;     /* [CHUNK / LANES][ROWS][4] */
    int64_t input_stride, output_stride, result_stride;
};

/* As many of a vector as there are; `whole` says that it is all of it. */
static INLINE TARGET FLOATS N(load)(const float *from, const int whole, int64_t count)
{
    if (whole) return *(const LOOSE *)from;
    FLOATS x = {0};
    memcpy(&x, from, count * sizeof(float));
    return x;
}

static INLINE TARGET void N(store)(FLOATS x, float *to, const int whole, int64_t count)
{
    if (whole) *(LOOSE *)to = x;
    else memcpy(to, &x, count * sizeof(float));
}

static INLINE TARGET FLOATS N(splat)(float x) { return x - (FLOATS){0}; }

static INLINE TARGET FLOATS N(clamp)(FLOATS x, float bound)
{
    FLOATS hi = N(splat)(bound), lo = -hi;
#ifdef CLAMP
    return CLAMP(x, lo, hi);
#else
    INTS below = x < lo, above = x > hi; /* a NaN is neither, and stays */
    return (FLOATS)((below & (INTS)lo) | (above & (INTS)hi) | (~(below | above) & (INTS)x));
#endif
}

/* 2 ** x for |x| <= 60, and that of the nearer end beyond: relative error below 2e-7, exact at 0. */
static INLINE TARGET FLOATS N(exp2)(FLOATS x)
{
    x = N(clamp)(x, 60);
    FLOATS shifted = x + 12582912.0f; /* 1.5 * 2 ** 23: the nearest integer ends up in the low bits */
    FLOATS r = x - (shifted - 12582912.0f);
    FLOATS y = r * 0.000153533619f + 0.00133988745f; /* minimax on [-0.5, 0.5] with 1 at 0 */
    y = y * r + 0.00961843736f;
    y = y * r + 0.0555033247f;
    y = y * r + 0.240226479f;
    y = y * r + 0.693147203f;
    y = y * r + 1.0f;
    return (FLOATS)((WORDS)y + ((WORDS)shifted << 23));
}

/* As many inputs of the weights' format as a vector has lanes. */
static INLINE TARGET void N(encode)(FLOATS x, float scale, INPUT *to)
{
    (void)scale; /* of int8 */
#if defined(DOT) && FORMAT == INT8
    WORDS codes = (WORDS)(x * scale + 12582912.0f) + 128;
    *(N(inputs) *)to = __builtin_convertvector(codes, N(inputs));
#elif defined(DOT)
    WORDS bits = (WORDS)x;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(N(inputs) *)to = __builtin_convertvector(bits, N(inputs));
#else
    *(N(inputs) *)to = x;
#endif
}

/* Sums with the products of one word of each lane's weights and one group of inputs. */
static INLINE TARGET SUMS N(add)(SUMS sums, WORDS weights, const INPUT *inputs)
{
#if defined(DOT)
    int32_t group;
    memcpy(&group, inputs, sizeof group);
    return (SUMS)DOT(sums, weights, group - (INTS){0});
#elif FORMAT == FLOAT32
    return sums + (FLOATS)weights * inputs[0];
#elif FORMAT == BFLOAT16
    sums += (FLOATS)(weights << 16) * inputs[0];
    return sums + (FLOATS)(weights & 0xffff0000) * inputs[1];
#else
    sums += __builtin_convertvector((INTS)(weights << 24) >> 24, FLOATS) * inputs[0];
    sums += __builtin_convertvector((INTS)(weights << 16) >> 24, FLOATS) * inputs[1];
    sums += __builtin_convertvector((INTS)(weights << 8) >> 24, FLOATS) * inputs[2];
    return sums + __builtin_convertvector((INTS)weights >> 24, FLOATS) * inputs[3];
#endif
}

/* Sums in units of the result. */
static INLINE TARGET FLOATS N(decode)(SUMS sums, const char *layer, int64_t scales, int64_t offsets, int64_t column,
                                      float scale)
{
#if FORMAT != INT8
    (void)layer, (void)scales, (void)offsets, (void)column, (void)scale;
    return sums;
#else
    FLOATS each = *(const FLOATS *)(layer + scales + column * sizeof(float));
#if !defined(DOT)
    (void)offsets, (void)scale;
    return sums * each;
#else
    INTS offset = *(const INTS *)(layer + offsets + column * sizeof(float));
    return __builtin_convertvector(sums - offset, FLOATS) * (each * scale);
#endif
#endif
}

/* Four times LANES outputs of a few rows, which stay in registers. Tiles share in fetching the weights that come next,
 * `ahead` of these: while one is busy, memory is too. */
static INLINE TARGET void N(product)(const int rows, const int fetching, int64_t groups, const uint32_t *weights,
                                     const INPUT *inputs, int64_t stride, const uint32_t *const ahead[2], SUMS *sums)
{
    const uint32_t *ahead_a = ahead[0], *ahead_b = ahead[1];
    SUMS kept[ROWS][4];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int g = 0; g < 4; g++) kept[r][g] = (SUMS){0};
    }
    for (int64_t k = 0; k < groups; k++, weights += 4 * LANES, inputs += GROUP) {
        if (fetching) {
            __builtin_prefetch(ahead_a + k * 4 * LANES, 0, 2);
            __builtin_prefetch(ahead_b + k * 4 * LANES, 0, 2);
        }
        UNROLL
        for (int g = 0; g < 4; g++) {
            WORDS w = *(const WORDS *)(weights + g * LANES);
            UNROLL
            for (int r = 0; r < rows; r++) kept[r][g] = N(add)(kept[r][g], w, inputs + r * stride);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int g = 0; g < 4; g++) sums[4 * r + g] = kept[r][g];
    }
}

static TARGET void N(products)(int rows, int64_t groups, const uint32_t *weights, const INPUT *inputs, int64_t stride,
                               const uint32_t *const ahead[2], SUMS *sums)
{
#define CASE(number)                                                                                 \
    case number:                                                                                     \
        if (ahead[0]) N(product)(number, 1, groups, weights, inputs, stride, ahead, sums);           \
        else N(product)(number, 0, groups, weights, inputs, stride, ahead, sums);                    \
        break;
    switch (rows) {
        CASE(1)
        CASE(2)
#if ROWS > 2
        CASE(3)
#endif
#if ROWS > 3
        CASE(4)
        CASE(5)
        CASE(6)
#endif
    }
#undef CASE
}

/* Ask for what `update_cells` will read of a tile, while its products are made. */
static INLINE TARGET void N(fetch_cells)(const struct N(work) *work, const float *gates, struct tile tile, int64_t first)
{
    int64_t dim = work->layer->cell_dim;
    for (int r = 0; r < tile.rows; r++) {
        int64_t place = work->job->first + (tile.row + r) * work->job->stride;
        for (int g = 0; g < 4; g++) __builtin_prefetch(gates + (4 * place + g) * dim + first);
        __builtin_prefetch(work->job->cell + place * dim + first, 1);
    }
}

/* From the sums of a block's gates to its cells and their outputs, for a tile. `gates` are those of the step. */
static INLINE TARGET void N(update)(const struct N(work) *work, const float *gates, const SUMS *sums, struct tile tile,
                                    int64_t first, const int whole)
{
    const struct layer *layer = work->layer;
    int64_t dim = layer->cell_dim, count = dim - first;
    for (int r = 0; r < tile.rows; r++, sums += 4) {
        int64_t row = tile.row + r, place = work->job->first + row * work->job->stride;
        FLOATS x[4];
        UNROLL
        for (int g = 0; g < 4; g++)
            x[g] = N(load)(gates + (4 * place + g) * dim + first, whole, count) +
                   N(decode)(sums[g], (const char *)layer, layer->gate_scales, layer->gate_offsets,
                             4 * first + g * LANES, work->scales[row]);
        /* sigmoid(x) = 1 / (1 + 2 ** (-x / ln 2)), tanh(x) = (1 - 2 ** (-2 x / ln 2)) / (1 + 2 ** (-2 x / ln 2)) */
        const float log2e = 1.44269504f;
        FLOATS i = N(exp2)(x[0] * -log2e), f = N(exp2)(x[1] * -log2e);
        FLOATS g = N(exp2)(x[2] * (-2 * log2e)), o = N(exp2)(x[3] * -log2e);
        float *cell = work->job->cell + place * dim + first;
        FLOATS c = N(load)(cell, whole, count) / (1 + f) + (1 - g) / ((1 + i) * (1 + g));
        c = N(clamp)(c, work->job->cell_clip);
        N(store)(c, cell, whole, count);
        FLOATS e = N(exp2)(c * (-2 * log2e));
        FLOATS output = (1 - e) / ((1 + o) * (1 + e));
        if (layer->projected) N(encode)(output, 127, work->outputs + row * work->output_stride + first % CHUNK);
        else *(FLOATS *)(work->results + row * work->result_stride + first) = output;
    }
}

static TARGET void N(update_cells)(const struct N(work) *work, const float *gates, const SUMS *sums, struct tile tile,
                                   int64_t first)
{
    if (first + LANES <= work->layer->cell_dim) N(update)(work, gates, sums, tile, first, 1);
    else N(update)(work, gates, sums, tile, first, 0);
}

/* `hidden` of a row from its `results`. */
static TARGET void N(encode_hidden)(const struct N(work) *work, int64_t row)
{
    const float *from = work->results + row * work->result_stride;
    INPUT *to = work->hidden + row * work->input_stride;
    float scale = 1;
#if defined(DOT) && FORMAT == INT8
    FLOATS most = {0};
    for (int64_t k = 0; k < work->result_stride; k += LANES) {
        FLOATS x = (FLOATS)(*(const WORDS *)(from + k) & 0x7fffffff);
        INTS more = x > most;
        most = (FLOATS)((more & (INTS)x) | (~more & (INTS)most));
    }
    float largest = 0;
    for (int lane = 0; lane < LANES; lane++) largest = fmaxf(largest, most[lane]);
    scale = largest > 1e-30f ? 127 / largest : 0;
    work->scales[row] = largest / 127;
#endif
    for (int64_t k = 0; k < work->result_stride; k += LANES) N(encode)(*(const FLOATS *)(from + k), scale, to + k);
}

/* From the sums of the projection to the next hidden of a row. */
static TARGET void N(finish)(const struct N(work) *work, int64_t row, float *out)
{
    const struct layer *layer = work->layer;
    float *results = work->results + row * work->result_stride;
    if (layer->projected)
        for (int64_t k = 0; k < work->result_stride; k += LANES) {
            FLOATS x = N(decode)(*(const SUMS *)(results + k), (const char *)layer, layer->out_scales,
                                 layer->out_offsets, k, 1 / 127.0f);
            *(FLOATS *)(results + k) = N(clamp)(x, work->job->proj_clip);
        }
    memcpy(out, results, layer->hidden_dim * sizeof(float));
    N(encode_hidden)(work, row);
}

/* Which vectors of each group of the next weights a tile fetches: two tiles take two each, four tiles one each. */
static INLINE void N(share)(const struct layer *layer, struct tile tile, const uint32_t *next, const uint32_t **ahead)
{
    int64_t tiles = tile.index + 1 + tile.left, from = tiles == 2 ? 2 * tile.index : tile.index;
    ahead[0] = ahead[1] = NULL;
    if (layer->bytes < FAR || tiles == 1 || from > 3) return;
    ahead[0] = next + LANES * from;
    ahead[1] = tiles < 4 && from < 3 ? ahead[0] + LANES : ahead[0];
}

/* One step of `alive` rows; `gates` and `out` are those of the step. */
static TARGET void N(step)(const struct N(work) *work, int64_t alive, const float *gates, float *out)
{
    const struct layer *layer = work->layer;
    const uint32_t *weights = (const uint32_t *)((const char *)layer + layer->words);
    int64_t cells = layer->blocks * LANES, tiles = divided_up(alive, ROWS);
    for (int64_t start = 0; start < cells; start += CHUNK) {
        int64_t end = start + CHUNK < cells ? start + CHUNK : cells;
        /* A single tile makes the products of all blocks first: its cells can then be made side by side. */
        int64_t span = tiles == 1 ? end - start : LANES, block_words = 4 * LANES * layer->groups;
        for (int64_t first = start; first < end; first += span, weights += span / LANES * block_words)
            for (struct tile tile = first_tile(alive, tiles); tile.rows; tile = next_tile(tile)) {
                const uint32_t *ahead[2];
                N(share)(layer, tile, weights + block_words, ahead);
                SUMS *sums = work->sums;
                for (int64_t block = 0; block < span / LANES; block++, sums += 4 * tile.rows) {
                    N(fetch_cells)(work, gates, tile, first + block * LANES);
                    N(products)(tile.rows, layer->groups, weights + block * block_words,
                                work->hidden + tile.row * work->input_stride, work->input_stride, ahead, sums);
                }
                sums = work->sums;
                for (int64_t block = 0; block < span / LANES; block++, sums += 4 * tile.rows)
                    N(update_cells)(work, gates, sums, tile, first + block * LANES);
            }
        int64_t groups = (end - start) / GROUP;
        for (int64_t block = 0; block < layer->out_blocks; block++, weights += 4 * LANES * groups)
            for (struct tile tile = first_tile(alive, tiles); tile.rows; tile = next_tile(tile)) {
                const uint32_t *ahead[2];
                N(share)(layer, tile, weights + 4 * LANES * groups, ahead);
                N(products)(tile.rows, groups, weights, work->outputs + tile.row * work->output_stride,
                            work->output_stride, ahead, work->sums);
                for (int r = 0; r < tile.rows; r++) {
                    SUMS *results = (SUMS *)(work->results + (tile.row + r) * work->result_stride) + 4 * block;
                    for (int g = 0; g < 4; g++)
                        if (start) results[g] += work->sums[4 * r + g];
                        else results[g] = work->sums[4 * r + g];
                }
            }
    }
    for (int64_t row = 0; row < alive; row++)
        N(finish)(work, row, out + (work->job->first + row * work->job->stride) * layer->hidden_dim);
}

static TARGET int NAME(const struct layer *layer, const struct job *job)
{
    int64_t width = layer->hidden_dim, alive = job->steps ? rows_alive(job, job->batch_sizes[0]) : 0;
    struct N(work) work = {.layer = layer, .job = job};
    work.result_stride = layer->projected ? 4 * LANES * layer->out_blocks : LANES * layer->blocks;
    /* A little more than a round number, lest the rows of a tile share the places of a cache. */
    work.input_stride = rounded_up(work.result_stride, ALIGNMENT) + ALIGNMENT / sizeof(INPUT);
    work.output_stride = CHUNK + ALIGNMENT / sizeof(INPUT);
    size_t result_bytes = alive * work.result_stride * sizeof(float), sum_bytes = 4 * ROWS * CHUNK / LANES * sizeof(SUMS);
    size_t hidden_bytes = alive * work.input_stride * sizeof(INPUT);
    size_t output_bytes = alive * work.output_stride * sizeof(INPUT);
    char *memory = calloc(1, ALIGNMENT + result_bytes + sum_bytes + hidden_bytes + output_bytes + alive * sizeof(float));
    if (!memory) return 1;
    char *place = memory + ALIGNMENT - (uintptr_t)memory % ALIGNMENT;
    work.sums = (SUMS *)place;
    work.results = (float *)(place += sum_bytes);
    work.hidden = (INPUT *)(place += result_bytes);
    work.outputs = (INPUT *)(place += hidden_bytes);
    work.scales = (float *)(place + output_bytes);

    for (int64_t row = 0; row < alive; row++) {
        memcpy(work.results + row * work.result_stride, job->hidden + (job->first + row * job->stride) * width,
               width * sizeof(float));
        N(encode_hidden)(&work, row);
    }
    const float *gates = job->gates;
    float *out = job->out;
    for (int64_t step = 0; alive > 0; step++) {
        N(step)(&work, alive, gates, out);
        int64_t next = step + 1 < job->steps ? rows_alive(job, job->batch_sizes[step + 1]) : 0;
        for (int64_t row = next; row < alive; row++) {
            int64_t at = (job->first + row * job->stride) * width;
            memcpy(job->hidden + at, out + at, width * sizeof(float));
        }
        gates += job->batch_sizes[step] * 4 * layer->cell_dim;
        out += job->batch_sizes[step] * width;
        alive = next;
    }
    free(memory);
    return 0;
}

#undef N
#undef FLOATS
#undef INTS
#undef WORDS
#undef LOOSE
#undef INPUT
#undef SUMS
#undef GROUP
#undef NAME
#undef FORMAT
