/* FedPBC on multinomial logistic regression, from its definition: what a kernel written for one machine and one problem
   needs. It evaluates nothing and keeps nothing. CLASSES, FEATURES, BATCH and WIDTH (features filled up) are macros. */

#include <stdint.h>
#include <string.h>

/* What is summed in registers at once: outputs of OUTPUTS classes for all samples, gradients of GROUP classes in SPAN
   vectors. There are 32 registers with AVX-512, else 16. */
#ifdef __AVX512F__
#define LANES 16
#define OUTPUTS 10
#define GROUP 5
#else
#define LANES 8
#define OUTPUTS 2
#define GROUP 2
#endif
#define SPAN 4
#define COLUMNS (WIDTH / LANES)
#define SAMPLES (BATCH / LANES)

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef union { vec v[COLUMNS]; float f[WIDTH]; } row;
typedef union { vec v[SAMPLES]; float f[BATCH]; } column;

/* splitmix64: a number that depends on the counter alone, so that threads do not matter */
static uint64_t mixed(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline vec larger(vec a, vec b) {
    ints more = a > b;
    return (vec)(((ints)a & more) | ((ints)b & ~more));
}

/* exp(x), x <= 0, to about 2e-7 relative: 2^n times a polynomial on [-1/2, 1/2] */
static inline vec exponential(vec x) {
    vec y = larger(x * 1.44269504f, (vec){} - 126.0f);
    ints n = __builtin_convertvector(y - 0.5f, ints);
    vec f = y - __builtin_convertvector(n, vec);
    vec p = f * 1.5403530e-4f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    return p * (vec)((n + 127) << 23);
}

static void local_steps(row *w, const row *features, const int32_t *labels, int64_t offset, int64_t size, uint64_t key,
                        int steps, float rate) {
    row x[BATCH];
    column transposed[FEATURES], target[CLASSES], z[CLASSES];
    memset(target, 0, sizeof target);
    for (int n = 0; n < BATCH; n++) {
        int64_t sample = offset + (int64_t)(((mixed(key + n) >> 32) * (uint64_t)size) >> 32);
        x[n] = features[sample];
        target[labels[sample]].f[n] = rate;
        for (int f = 0; f < FEATURES; f++) transposed[f].f[n] = x[n].f[f];
    }
    for (int step = 0; step < steps; step++) {
        vec sums[CLASSES][SAMPLES];
        for (int first = 0; first < CLASSES; first += OUTPUTS) {
            vec own[OUTPUTS][SAMPLES] = {};
            for (int f = 0; f < FEATURES; f++) {
#pragma GCC unroll 32
                for (int c = 0; c < OUTPUTS; c++)
#pragma GCC unroll 8
                    for (int k = 0; k < SAMPLES; k++) own[c][k] += transposed[f].v[k] * w[first + c].f[f];
            }
            memcpy(sums[first], own, sizeof own);
        }
        for (int k = 0; k < SAMPLES; k++) {
            vec most = sums[0][k], total = {};
            for (int c = 1; c < CLASSES; c++) most = larger(sums[c][k], most);
            for (int c = 0; c < CLASSES; c++) total += z[c].v[k] = exponential(sums[c][k] - most);
            vec weight = rate / total;
            for (int c = 0; c < CLASSES; c++) z[c].v[k] = z[c].v[k] * weight - target[c].v[k];
        }
        for (int first = 0; first < CLASSES; first += GROUP)
            for (int start = 0; start < COLUMNS; start += SPAN) {
                vec gradient[GROUP][SPAN] = {};
                for (int n = 0; n < BATCH; n++) {
#pragma GCC unroll 8
                    for (int c = 0; c < GROUP; c++)
#pragma GCC unroll 8
                        for (int j = 0; j < SPAN; j++) gradient[c][j] += x[n].v[start + j] * z[first + c].f[n];
                }
#pragma GCC unroll 8
                for (int c = 0; c < GROUP; c++)
#pragma GCC unroll 8
                    for (int j = 0; j < SPAN; j++) w[first + c].v[start + j] -= gradient[c][j];
            }
    }
}

/* Rounds first..last-1: clients [m][CLASSES], server [CLASSES], prob [period][m]. */
void fedpbc_rounds(int64_t m, row *clients, row *server, const row *features, const int32_t *labels,
                   const int64_t *offsets, const int64_t *sizes, const float *prob, int64_t period, int64_t first,
                   int64_t last, int steps, float learning_rate, uint64_t seed, int threads) {
    for (int64_t t = first; t < last; t++) {
        uint64_t key = mixed(seed ^ mixed((uint64_t)t));
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < m; i++)
            local_steps(clients + i * CLASSES, features, labels, offsets[i], sizes[i], mixed(key + (uint64_t)i), steps,
                        learning_rate / BATCH);
        row sum[CLASSES];
        memset(sum, 0, sizeof sum);
        int64_t heard = 0;
        unsigned char active[m];
        for (int64_t i = 0; i < m; i++) {
            active[i] = (mixed(~key + (uint64_t)i) >> 40) * 0x1p-24f < prob[(t % period) * m + i];
            heard += active[i];
            if (active[i])
                for (int c = 0; c < CLASSES; c++)
                    for (int j = 0; j < COLUMNS; j++) sum[c].v[j] += clients[i * CLASSES + c].v[j];
        }
        if (heard == 0) continue;
        for (int c = 0; c < CLASSES; c++)
            for (int j = 0; j < COLUMNS; j++) server[c].v[j] = sum[c].v[j] / (float)heard;
        for (int64_t i = 0; i < m; i++)
            if (active[i]) memcpy(clients + i * CLASSES, server, sizeof(row) * CLASSES);
    }
}
