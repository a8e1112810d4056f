// The solver's steps; see device_steps.py. One block works on vector v = p K + k, of node p and
// replica k. A thread works on the coordinates j = threadIdx.x, + blockDim.x, ... of everything.

#define EACH(j) (int j = threadIdx.x; j < d; j += blockDim.x)

// The sum over the block, the same in every thread.
__device__ double total(double x)
{
    __shared__ double part[32];
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(0xffffffff, x, o);
    if (blockDim.x == 32)
        return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < blockDim.x / 32; ++i)
        x += part[i];
    return x;
}

// Where the vector stands among r and G of its chunk of `size` replicas.
__device__ size_t chunked(int v, int P, int K, int size)
{
    int p = v / K, k = v % K;
    return ((size_t)(k / size) * P + p) * 2 * size + k % size;
}

// r <- r - w (s.r) y for the last pairs, from the newest on, beginning with G (Nocedal and Wright, Alg. 7.4).
extern "C" __global__ void first_loop(
    const double *G, const double *s, const double *y, const double *w, double *both, double *a,
    int held, int next, int P, int K, int d, int size)
{
    extern __shared__ double r[];
    int v = blockIdx.x;
    size_t n = (size_t)P * K, at = (size_t)v * d, to = chunked(v, P, K, size);
    for EACH(j) r[j] = G[at + j];
    for (int m = 0; m < held; ++m) {
        size_t i = (next - 1 - m + 2 * MEMORY) % MEMORY;
        const double *si = s + (i * n + v) * d, *yi = y + (i * n + v) * d;
        double x = 0;
        for EACH(j) x += si[j] * r[j];
        x = w[i * n + v] * total(x);
        for EACH(j) r[j] -= x * yi[j];
        if (threadIdx.x == 0)
            a[m * n + v] = x;
    }
    for EACH(j) {
        both[to * d + j] = r[j];
        both[(to + size) * d + j] = G[at + j];
    }
}

// r <- r + (a - w (y.r)) s, from the oldest on, beginning with M^-1 r; the direction D = -r, or -M^-1 G where
// that does not fall; the trial F + D, also in wider lines.
extern "C" __global__ void second_loop(
    const double *F, const double *G, const double *todo, const double *both, const double *s,
    const double *y, const double *w, const double *a, double *D, double *trial, double *wide,
    double *slope, double *news, int held, int next, int P, int K, int d, int size, int width)
{
    extern __shared__ double r[];
    int v = blockIdx.x;
    size_t n = (size_t)P * K, at = (size_t)v * d, from = chunked(v, P, K, size);
    const double *plain = both + (from + size) * d;
    for EACH(j) r[j] = both[from * d + j];
    for (int m = held - 1; m >= 0; --m) {
        size_t i = (next - 1 - m + 2 * MEMORY) % MEMORY;
        const double *si = s + (i * n + v) * d, *yi = y + (i * n + v) * d;
        double x = 0;
        for EACH(j) x += yi[j] * r[j];
        x = a[m * n + v] - w[i * n + v] * total(x);
        for EACH(j) r[j] += x * si[j];
    }
    double Gr = 0, Gplain = 0;
    for EACH(j) {
        Gr += G[at + j] * r[j];
        Gplain += G[at + j] * plain[j];
    }
    Gr = total(Gr);
    Gplain = total(Gplain);
    bool falls = Gr > 0;
    for EACH(j) {
        double step = -(falls ? r[j] : plain[j]) * todo[v];
        D[at + j] = step;
        trial[at + j] = wide[(size_t)v * width + j] = F[at + j] + step;
    }
    if (threadIdx.x == 0) {
        slope[v] = -(falls ? Gr : Gplain) * todo[v];
        news[n + v] = Gplain;
    }
}

// At x: the gradient g = (C/B) sum L' a + rho grad R + q x + b and its certificate (maths.md 6); the pair
// s = x - F, y = g - G; and whether the step D to x will not do: its slope is still steep, beyond rounding.
extern "C" __global__ void arrive(
    const double *trial, const double *F, const double *G_before, const double *D,
    const double *sums, const double *R, const double *q, const double *b, const double *b_size,
    const double *constants, const double *slope, const double *error_before, double *G, double *s,
    double *y, double *w, double *news, double *error, double *after, double rho, double k10,
    double more, double flat, int how, int next, int P, int K, int d, int width)
{
    enum { FIRST, STEP, FOUND };
    int v = blockIdx.x, p = v / K;
    size_t n = (size_t)P * K, at = (size_t)v * d, to = ((size_t)next * n + v) * d;
    const double *sum_of = sums + (size_t)v * width;  // lines of sums may be longer than vectors
    double weight = constants[3 * p], margins = constants[3 * p + 1], sum = constants[3 * p + 2];
    double xx = 0, rr = 0, gg = 0, ss = 0, yy = 0, sy = 0, gd = 0, dd = 0;
    for EACH(j) {
        double x = trial[at + j], r = R[at + j];
        double g = how == FOUND ? sum_of[j]
                                : weight * sum_of[j] + rho * r + q[v] * x + b[at + j];
        xx += x * x;
        rr += r * r;
        gg += g * g;
        if (how != FIRST) {
            double step = x - F[at + j], change = g - G_before[at + j];
            s[to + j] = step;
            y[to + j] = change;
            ss += step * step;
            yy += change * change;
            sy += step * change;
            gd += g * D[at + j];
            dd += D[at + j] * D[at + j];
        }
        G[at + j] = g;
    }
    xx = total(xx);
    rr = total(rr);
    gg = total(gg);
    double rest = q[v] * sqrt(xx) + rho * sqrt(rr) + b_size[v];
    double off = margins * sqrt(xx) + sum + k10 * rest;
    bool bad = false;
    if (how != FIRST) {
        ss = total(ss);
        yy = total(yy);
        sy = total(sy);
        gd = total(gd);
        dd = total(dd);
        bad = fabs(gd) > -flat * slope[v] && fabs(gd) > error_before[v] * sqrt(dd);
    }
    if (threadIdx.x == 0) {
        error[v] = off;
        news[v] = sqrt(gg) * more + off;
        if (how == STEP) {
            news[2 * n + v] = bad;
            after[v] = gd;
        }
        if (how != FIRST)  // a pair without curvature weighs nothing
            w[next * n + v] = sy > 1e-12 * sqrt(ss) * sqrt(yy) ? 1 / sy : 0;
    }
}
