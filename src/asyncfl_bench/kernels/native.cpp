// The gradient of a small convolutional network at one mini-batch, on one core: blocks of convolution, bias, ReLU and
// (mostly) 2x2 max-pool, then linear layers with ReLU in between, then the mean cross-entropy. Or of the first or last
// layers of one that is cut: then what goes out or comes in are activations.
//
// native.py writes `using Net = Network<…>` with the shapes behind this text and compiles both; all sizes are known to the compiler.
// A sample goes through all blocks while its activations are in the first cache. Max-pool and ReLU let few gradients
// pass, so going back through a pooled block only visits the winners. Parameters are in torch's order.
//
// Legend: C channels in, H x W pixels in, O channels out, K kernel, P padding, Y x X pixels of the convolution's result,
// PY x PX of the block's; b samples of the mini-batch. Activations between blocks are pixel by pixel, channels last.

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {

// floats in a vector, vectors in registers, every second float of two vectors
#if defined(__AVX512F__)
constexpr int L = 16, REGISTERS = 32;
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODDS 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX__)
constexpr int L = 8, REGISTERS = 16;
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14
#define ODDS 1, 3, 5, 7, 9, 11, 13, 15
#else
#if defined(__aarch64__)
constexpr int L = 4, REGISTERS = 32;
#else
constexpr int L = 4, REGISTERS = 16;
#endif
#define EVENS 0, 2, 4, 6
#define ODDS 1, 3, 5, 7
#endif
typedef float Vec __attribute__((vector_size(L * 4)));
typedef float VecU __attribute__((vector_size(L * 4), aligned(4), may_alias));  // at any float's address
constexpr int up(int n) { return (n + L - 1) / L * L; }
constexpr int least(int a, int b) { return a < b ? a : b; }

inline Vec load(const float* p) { return *(const VecU*)p; }
inline void store(float* p, Vec v) { *(VecU*)p = v; }
inline float sum(Vec v) {
  float s = 0;
  for (int i = 0; i < L; i++) s += v[i];
  return s;
}
inline bool finite(const float* p, int n) {  // n a multiple of L
  Vec zeros{};
  for (int i = 0; i < n; i += L) zeros += load(p + i) * 0;  // NaN where a number is infinite or NaN
  return sum(zeros) == 0;
}
inline float relu(float z) { return z <= 0 ? 0 : z; }  // NaN stays, as in torch

typedef int32_t Int __attribute__((vector_size(L * 4)));
typedef uint8_t Bytes __attribute__((vector_size(L)));
inline Vec choose(Int which, Vec yes, Vec no) { return (Vec)((which & (Int)yes) | (~which & (Int)no)); }
inline Int choose(Int which, Int yes, Int no) { return (which & yes) | (~which & no); }
inline Vec evens(Vec a, Vec b) { return __builtin_shufflevector(a, b, EVENS); }
inline Vec odds(Vec a, Vec b) { return __builtin_shufflevector(a, b, ODDS); }

constexpr uint8_t OFF = 255;  // the ReLU behind lets no gradient pass

struct Winner {  // L results of convolution, bias, ReLU and pool, and which pixel each comes from
  Vec best;
  Int which;
  // of equals the first counts, and what is no number wins, as in torch
  void against(Vec other, int i) {
    const Int wins = (other > best) | (other != other);
    best = choose(wins, other, best);
    which = choose(wins, Int{} + i, which);
  }
  void write(Vec bias, float* result, uint8_t* winner) {
    best += bias;
    const Int off = best <= 0;
    const Bytes bytes = __builtin_convertvector(which | (off & OFF), Bytes);
    store(result, choose(off, Vec{}, best));
    memcpy(winner, &bytes, L);
  }
};

// ---- one convolution block, for one sample ---------------------------------------------------------------------------

template <int C_, int H_, int W_, int O_, int K_, int P_, bool POOL_, bool FIRST_, bool LAST_>
struct Conv {
  static constexpr int C = C_, H = H_, W = W_, O = O_, K = K_, P = P_;
  static constexpr bool POOL = POOL_, FIRST = FIRST_, LAST = LAST_;
  static constexpr int HP = H + 2 * P, WP = W + 2 * P, Y = HP - K + 1, X = WP - K + 1;
  static constexpr int PY = POOL ? Y / 2 : Y, PX = POOL ? X / 2 : X, RY = POOL ? 2 : 1, USED = PX * RY;
  static constexpr int T = K * C, TV = up(T);  // what one row of the kernel covers, channels last
  static constexpr int OV = up(O), IN = HP * WP * C, OUT = PY * PX * O;
  static constexpr bool ROWS = O < L;  // vectors are pieces of rows; else channels out
  static constexpr int XV = up(USED), WR = XV + K - 1 > WP ? XV + K - 1 : WP;
  static constexpr int PARAMETERS = O * C * K * K + O;

  struct Weights {  // in the orders that the loops below read
    alignas(64) float rows[ROWS ? C * K * K * O : 1];        // [c][kh][kw][o]
    alignas(64) float channels[ROWS ? 1 : K * T * OV];       // [kh][t][o]
    alignas(64) float taps[O * K * TV];                      // [o][kh][t]
    alignas(64) float bias[OV];
    bool finite;  // all taps
  };
  struct Sample {  // of the forward pass, for the way back
    alignas(64) float in[IN + L];  // channels last, with the padding
    uint8_t winner[OUT];           // which of the pixels under the pool; OFF
  };
  struct Gradient {
    alignas(64) float taps[O * K * TV];
    float bias[O];
  };

  static void read(const float* w, Weights& to) {
    memset(&to, 0, sizeof to);
    for (int o = 0; o < O; o++) {
      for (int c = 0; c < C; c++)
        for (int kh = 0; kh < K; kh++)
          for (int kw = 0; kw < K; kw++) {
            const float v = w[((o * C + c) * K + kh) * K + kw];
            if constexpr (ROWS) to.rows[((c * K + kh) * K + kw) * O + o] = v;
            else to.channels[(kh * T + kw * C + c) * OV + o] = v;
            to.taps[(o * K + kh) * TV + kw * C + c] = v;
          }
      to.bias[o] = w[O * C * K * K + o];
    }
    to.finite = finite(to.taps, O * K * TV);
  }

  static void write(const Gradient& from, float* out) {
    for (int o = 0; o < O; o++) {
      for (int c = 0; c < C; c++)
        for (int kh = 0; kh < K; kh++)
          for (int kw = 0; kw < K; kw++)
            out[((o * C + c) * K + kh) * K + kw] = from.taps[(o * K + kh) * TV + kw * C + c];
      out[O * C * K * K + o] = from.bias[o];
    }
  }

  static constexpr int at(int o, int py, int px) { return LAST ? (o * PY + py) * PX + px : (py * PX + px) * O + o; }

  // in: (H, W, C), of the first block (C, H, W); out: (PY, PX, O), of the last block (O, PY, PX)
  // BACK: whether backward will follow
  template <bool BACK>
  static void forward(const float* in, const Weights& w, Sample& s, float* out) {
    alignas(64) float planes[ROWS ? C * HP * WR + L : 1];
    if constexpr (ROWS) memset(planes, 0, sizeof planes);
    constexpr int PER_CHANNEL = FIRST ? 1 : C, PER_PIXEL = FIRST ? H * W : 1;
    for (int c = 0; c < C && ROWS; c++)
      for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
          planes[(c * HP + y + P) * WR + x + P] = in[(y * W + x) * PER_CHANNEL + c * PER_PIXEL];
    if constexpr (BACK || !ROWS) {
      if constexpr (P > 0) memset(s.in, 0, sizeof s.in);
      memset(s.in + IN, 0, L * sizeof(float));
      for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
          for (int c = 0; c < C; c++)
            s.in[((y + P) * WP + x + P) * C + c] = in[(y * W + x) * PER_CHANNEL + c * PER_PIXEL];
    }
    alignas(64) float z[RY][ROWS ? O * XV : USED * OV], row[ROWS ? O * XV : PX * OV];
    uint8_t won[ROWS ? O * XV : PX * OV];
    for (int py = 0; py < PY; py++) {
      for (int r = 0; r < RY; r++) {
        if constexpr (ROWS) by_rows(planes, w, py * RY + r, z[r]);
        else by_channels(s, w, py * RY + r, z[r]);
      }
      if constexpr (ROWS)
        for (int o = 0; o < O; o++)
          for (int x = 0; x < PX; x += L) {
            const Vec bias = Vec{} + w.bias[o];
            const int to = o * XV + x;
            if constexpr (POOL) {
              const float *upper = z[0] + o * XV + 2 * x, *lower = z[1] + o * XV + 2 * x;
              const bool more = 2 * x + L < XV;
              const Vec a = load(upper), b = more ? load(upper + L) : a, c = load(lower), d = more ? load(lower + L) : c;
              Winner found{evens(a, b), Int{}};
              found.against(odds(a, b), 1);
              found.against(evens(c, d), 2);
              found.against(odds(c, d), 3);
              found.write(bias, row + to, won + to);
            } else {
              Winner{load(z[0] + to), Int{}}.write(bias, row + to, won + to);
            }
          }
      else
        for (int px = 0; px < PX; px++)
          for (int n = 0; n < OV; n += L) {
            Winner found{load(z[0] + px * RY * OV + n), Int{}};
            if constexpr (POOL) {
              found.against(load(z[0] + (2 * px + 1) * OV + n), 1);
              found.against(load(z[1] + 2 * px * OV + n), 2);
              found.against(load(z[1] + (2 * px + 1) * OV + n), 3);
            }
            found.write(load(w.bias + n), row + px * OV + n, won + px * OV + n);
          }
      for (int px = 0; px < PX; px++)
        for (int o = 0; o < O; o++) {
          const int from = ROWS ? o * XV + px : px * OV + o;
          out[at(o, py, px)] = row[from];
          if constexpr (BACK) s.winner[(py * PX + px) * O + o] = won[from];
        }
    }
  }

  static void by_rows(const float* planes, const Weights& w, int y, float* z) {
    constexpr int N = XV / L, ALL = (REGISTERS - 4) / N, GROUP = ALL < 1 ? 1 : least(O, ALL);
    int first = 0;
    for (; first + GROUP <= O; first += GROUP) rows<GROUP, N>(planes, w, y, first, z);
    for (; first < O; first++) rows<1, N>(planes, w, y, first, z);
  }

  template <int G, int N>
  static void rows(const float* planes, const Weights& w, int y, int first, float* z) {  // G channels, N pieces of a row
    Vec sums[G][N] = {};
    for (int c = 0; c < C; c++)
      for (int kh = 0; kh < K; kh++) {
        const float* row = planes + (c * HP + y + kh) * WR;
        const float* taps = w.rows + (c * K + kh) * K * O + first;
        for (int kw = 0; kw < K; kw++)
          for (int n = 0; n < N; n++) {
            const Vec v = load(row + kw + n * L);
            for (int g = 0; g < G; g++) sums[g][n] += taps[kw * O + g] * v;
          }
      }
    for (int g = 0; g < G; g++)
      for (int n = 0; n < N; n++) store(z + (first + g) * XV + n * L, sums[g][n]);
  }

  template <int M, int N>  // M pixels, N vectors of channels
  static void tile(const float* in, const float* taps, float* z) {
    Vec sums[M][N] = {};
    for (int kh = 0; kh < K; kh++)
      for (int t = 0; t < T; t++)
        for (int n = 0; n < N; n++) {
          const Vec v = load(taps + (kh * T + t) * OV + n * L);
          for (int m = 0; m < M; m++) sums[m][n] += in[kh * WP * C + m * C + t] * v;
        }
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) store(z + m * OV + n * L, sums[m][n]);
  }

  static void by_channels(const Sample& s, const Weights& w, int y, float* z) {
    constexpr int N = OV / L % 2 == 0 ? 2 : 1, MOST = (REGISTERS - 4) / N, PIECES = (USED + MOST - 1) / MOST;
    constexpr int M = (USED + PIECES - 1) / PIECES;
    for (int n = 0; n < OV; n += N * L)
      for (int piece = 0; piece < PIECES; piece++) {
        const int x = least(piece * M, USED - M);  // the last one may do some pixels again
        tile<M, N>(s.in + (y * WP + x) * C, w.channels + n, z + x * OV + n);
      }
  }

  // torch multiplies the gradients that are zero, too: where a number is infinite or NaN, their products are NaN
  static void add_products_of_zeros(const Weights& w, const Sample& s, Gradient& g, float* d_in) {
    for (int kh = 0; kh < K; kh++)
      for (int t = 0; t < T; t++) {
        float of_weights = 0, of_samples = 0;
        for (int o = 0; o < O; o++) of_weights += 0 * w.taps[(o * K + kh) * TV + t];
        for (int y = 0; y < Y; y++)
          for (int x = 0; x < X; x++) {
            const int at = ((y + kh) * WP + x) * C + t;
            of_samples += 0 * s.in[at];
            if (d_in) d_in[at] += of_weights;
          }
        for (int o = 0; o < O; o++) g.taps[(o * K + kh) * TV + t] += of_samples;
      }
  }

  // d: gradient of the block's result, laid out as it; d_in (HP, WP, C) is added to, null where nobody needs it
  static void backward(const float* d, const Weights& w, const Sample& s, Gradient& g, float* d_in) {
    if (!finite(s.in, up(IN)) || (d_in && !w.finite)) add_products_of_zeros(w, s, g, d_in);
    for (int o = 0; o < O; o++) {
      Vec sums[K][TV / L];
      for (int kh = 0; kh < K; kh++)
        for (int n = 0; n < TV / L; n++) sums[kh][n] = load(g.taps + (o * K + kh) * TV + n * L);
      float bias = g.bias[o];
      for (int py = 0; py < PY; py++)
        for (int px = 0; px < PX; px++) {
          const uint8_t which = s.winner[(py * PX + px) * O + o];
          if (which == OFF) continue;
          const float v = d[at(o, py, px)];
          bias += v;
          const int from = ((py * RY + (which >> 1)) * WP + px * RY + (which & 1)) * C;
          for (int kh = 0; kh < K; kh++)
            for (int n = 0; n < TV / L; n++) sums[kh][n] += v * load(s.in + from + kh * WP * C + n * L);
          if (d_in)
            for (int kh = 0; kh < K; kh++)
              for (int n = 0; n < TV / L; n++) {
                float* to = d_in + from + kh * WP * C + n * L;
                store(to, load(to) + v * load(w.taps + (o * K + kh) * TV + n * L));
              }
        }
      g.bias[o] = bias;
      for (int kh = 0; kh < K; kh++)
        for (int n = 0; n < TV / L; n++) store(g.taps + (o * K + kh) * TV + n * L, sums[kh][n]);
    }
  }

  // the same without d_in for the first block where it has no pool, so that half of all gradients pass: over vectors of channels
  static void backward_dense(const float* d, const Sample& s, Gradient& g) {
    alignas(64) float masked[OV];
    alignas(64) static thread_local float sums[(K * T + 1) * OV];
    memset(sums, 0, sizeof sums);
    for (int y = 0; y < PY; y++)
      for (int x = 0; x < PX; x++) {
        for (int o = 0; o < O; o++) masked[o] = s.winner[(y * PX + x) * O + o] == OFF ? 0 : d[at(o, y, x)];
        for (int o = 0; o < O; o++) sums[K * T * OV + o] += masked[o];
        for (int kh = 0; kh < K; kh++)
          for (int t = 0; t < T; t++) {
            const float v = s.in[((y + kh) * WP + x) * C + t];
            for (int o = 0; o < O; o++) sums[(kh * T + t) * OV + o] += v * masked[o];
          }
      }
    for (int o = 0; o < O; o++) {
      g.bias[o] += sums[K * T * OV + o];
      for (int kh = 0; kh < K; kh++)
        for (int t = 0; t < T; t++) g.taps[(o * K + kh) * TV + t] += sums[(kh * T + t) * OV + o];
    }
  }
};

// ---- linear layers, for all samples together -------------------------------------------------------------------------

// out[m][n] = sum_k a[m * am + k * ak] * b[k * bk + n], N of a block's columns at once
template <int M, int N>
inline void product_tile(int k, const float* a, int64_t am, int64_t ak, const float* b, int64_t bk, float* out,
                         int64_t on) {
  Vec sums[M][N] = {};
  for (int i = 0; i < k; i++) {
    Vec v[N];
    for (int n = 0; n < N; n++) v[n] = load(b + i * bk + n * L);
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) sums[m][n] += a[m * am + i * ak] * v[n];
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) store(out + m * on + n * L, sums[m][n]);
}

constexpr int COLUMNS = 2 * L, TALL = REGISTERS == 32 ? 8 : 4;  // of a tile

// `spare`: (k + TALL) * COLUMNS floats for a last, incomplete piece of columns
void product(int m, int n, int k, const float* a, int64_t am, int64_t ak, const float* b, int64_t bk, float* out,
             int64_t on, float* spare) {
  for (int column = 0; column < n; column += COLUMNS) {
    const int some = least(COLUMNS, n - column);
    const float* panel = b + column;
    float *to = out + column, *tile = spare + (int64_t)k * COLUMNS;
    int64_t step = bk;
    if (some < COLUMNS) {
      memset(spare, 0, (int64_t)k * COLUMNS * sizeof(float));
      for (int i = 0; i < k; i++) memcpy(spare + i * COLUMNS, b + i * bk + column, some * sizeof(float));
      panel = spare, step = COLUMNS;
    }
    for (int row = 0; row < m;) {
      const int rows = row + TALL <= m ? TALL : 1;
      float* into = some < COLUMNS ? tile : to + row * on;
      const int64_t into_step = some < COLUMNS ? COLUMNS : on;
      if (rows == TALL) product_tile<TALL, 2>(k, a + row * am, am, ak, panel, step, into, into_step);
      else product_tile<1, 2>(k, a + row * am, am, ak, panel, step, into, into_step);
      if (some < COLUMNS)
        for (int r = 0; r < rows; r++) memcpy(to + (row + r) * on, tile + r * COLUMNS, some * sizeof(float));
      row += rows;
    }
  }
}

// out[m][n] = sum_k a[m * k + .] * b[n * k + .] + bias[n]
template <int M, int N>
inline void dots(int k, const float* a, const float* b, const float* bias, float* out, int64_t on) {
  Vec sums[M][N] = {};
  int i = 0;
  for (; i + L <= k; i += L) {
    Vec v[N];
    for (int n = 0; n < N; n++) v[n] = load(b + (int64_t)n * k + i);
    for (int m = 0; m < M; m++) {
      const Vec u = load(a + (int64_t)m * k + i);
      for (int n = 0; n < N; n++) sums[m][n] += u * v[n];
    }
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      const float *u = a + (int64_t)m * k, *v = b + (int64_t)n * k;
      float s = sum(sums[m][n]) + bias[n];
      for (int64_t j = i; j < k; j++) s += u[j] * v[j];
      out[m * on + n] = s;
    }
}

void linear(int m, int n, int k, const float* a, const float* w, const float* bias, float* out) {
  constexpr int T = REGISTERS == 32 ? 4 : 2;
  int row = 0;
  for (; row + T <= m; row += T) {
    int col = 0;
    for (; col + T <= n; col += T)
      dots<T, T>(k, a + (int64_t)row * k, w + (int64_t)col * k, bias + col, out + (int64_t)row * n + col, n);
    for (; col < n; col++)
      dots<T, 1>(k, a + (int64_t)row * k, w + (int64_t)col * k, bias + col, out + (int64_t)row * n + col, n);
  }
  for (; row < m; row++)
    for (int col = 0; col < n; col++)
      dots<1, 1>(k, a + (int64_t)row * k, w + (int64_t)col * k, bias + col, out + (int64_t)row * n + col, n);
}

// ---- the network -----------------------------------------------------------------------------------------------------

template <class... Blocks>
struct Chain {  // of no block
  static constexpr bool EMPTY = true;
  static constexpr int PARAMETERS = 0, PIXELS = 0;
  struct Weights {};
  struct Sample {};
  struct Gradient {};
  static void read(const float*, Weights&) {}
  static void write(const Gradient&, float*) {}
  template <bool>
  static void forward(const float*, const Weights&, Sample&, float*) {}
  static void backward(const float*, const Weights&, const Sample&, Gradient&, float*) {}
};

template <class B, class... Rest>
struct Chain<B, Rest...> {
  using Next = Chain<Rest...>;
  using First = B;
  static constexpr bool EMPTY = false;
  static constexpr int PARAMETERS = B::PARAMETERS + Next::PARAMETERS, PIXELS = B::C * B::H * B::W;
  struct Weights {
    typename B::Weights own;
    typename Next::Weights next;
  };
  struct Sample {
    typename B::Sample own;
    typename Next::Sample next;
  };
  struct Gradient {
    typename B::Gradient own;
    typename Next::Gradient next;
  };

  static void read(const float* w, Weights& to) {
    B::read(w, to.own);
    Next::read(w + B::PARAMETERS, to.next);
  }

  static void write(const Gradient& from, float* out) {
    B::write(from.own, out);
    Next::write(from.next, out + B::PARAMETERS);
  }

  template <bool BACK>
  static void forward(const float* in, const Weights& w, Sample& s, float* features) {
    if constexpr (B::LAST) {
      B::template forward<BACK>(in, w.own, s.own, features);
    } else {
      alignas(64) float out[B::OUT];
      B::template forward<BACK>(in, w.own, s.own, out);
      Next::template forward<BACK>(out, w.next, s.next, features);
    }
  }

  static void backward(const float* d, const Weights& w, const Sample& s, Gradient& g, float* d_in) {
    if constexpr (B::LAST) {
      B::backward(d, w.own, s.own, g.own, d_in);
    } else {
      using N = typename Next::First;
      alignas(64) float padded[N::IN + L];
      memset(padded, 0, sizeof padded);
      Next::backward(d, w.next, s.next, g.next, padded);
      if constexpr (N::P > 0)
        for (int y = 0; y < N::H; y++)
          memmove(padded + y * N::W * N::C, padded + ((y + N::P) * N::WP + N::P) * N::C,
                       N::W * N::C * sizeof(float));
      if constexpr (B::FIRST && !B::POOL)
        if (!d_in) return B::backward_dense(padded, s.own, g.own);
      B::backward(padded, w.own, s.own, g.own, d_in);
    }
  }
};

struct Memory {  // the caller's, taken piece by piece
  char* at;
  template <class T>
  T* take(int64_t count) {
    at = (char*)(((uintptr_t)at + 63) / 64 * 64);
    T* found = (T*)at;
    at += count * sizeof(T);
    return found;
  }
};

struct Samples {  // numbers, or pixels that a table (channels, 256) turns into numbers; of `chosen`, or the first ones
  const float* numbers;
  const uint8_t* pixels;
  const float* table;
  int64_t channels;
  const int64_t* chosen;
  const int64_t* cut;  // null, or (3, b): row and column of each image's corner in itself with zeros around; mirrored
  int64_t height, width, border;
  int64_t at(int64_t i) const { return chosen ? chosen[i] : i; }
  const float* sample(int64_t i, int64_t b, int64_t size, float* room) const {
    if (!pixels) return numbers + at(i) * size;
    const uint8_t* from = pixels + at(i) * size;
    const int64_t plane = size / channels;
    for (int64_t c = 0; c < channels; c++) {
      const float* number = table + c * 256;
      if (!cut)
        for (int64_t p = c * plane; p < (c + 1) * plane; p++) room[p] = number[from[p]];
      else
        cut_out(from + c * plane, number, cut[i] - border, cut[b + i] - border, cut[2 * b + i], room + c * plane);
    }
    return room;
  }
  void cut_out(const uint8_t* from, const float* number, int64_t top, int64_t left, bool mirrored, float* room) const {
    for (int64_t y = 0; y < height; y++) {
      float* row = room + y * width;
      const int64_t first = left < 0 ? -left : 0, last = left > 0 ? width - left : width;
      for (int64_t x = 0; x < width; x++) row[x] = number[0];
      if (y + top < 0 || y + top >= height) continue;
      const uint8_t* line = from + (y + top) * width + left;
      if (mirrored)
        for (int64_t x = first; x < last; x++) row[width - 1 - x] = number[line[x]];
      else
        for (int64_t x = first; x < last; x++) row[x] = number[line[x]];
    }
  }
};

struct Targets {  // of all samples: labels, or (., classes) shares of the classes, whose sum need not be 1
  const int64_t* labels;
  const float* shares;
};

// RELU: whether there is one behind the last layer, too
// WIDTHS: features, widths of hidden layers, classes; of the first layers of a cut network what goes out, features alone
// where that is before the linear layers
template <class Convs, bool RELU, int... WIDTHS>
struct Network {
  static constexpr int LAYERS = sizeof...(WIDTHS) - 1;
  static constexpr int width[LAYERS + 1] = {WIDTHS...};

  static constexpr int64_t parameters() {
    int64_t count = Convs::PARAMETERS;
    for (int l = 0; l < LAYERS; l++) count += (int64_t)width[l + 1] * (width[l] + 1);
    return count;
  }
  static constexpr int64_t COUNT = parameters();

  static constexpr int SIZE = Convs::EMPTY ? width[0] : Convs::PIXELS;  // of a sample

  template <bool BACK>
  struct Pass {  // through all layers, in the caller's memory; BACK: whether backward will follow
    typename Convs::Weights* weights;
    typename Convs::Sample* samples;  // BACK: b of them, else one
    typename Convs::Gradient* sums;
    float *room, *spare, *entered[LAYERS + 1], *error[LAYERS + 1];  // what enters a linear layer; its gradient

    Pass(Memory& memory, int64_t b) {
      weights = memory.take<typename Convs::Weights>(1);
      room = memory.take<float>(SIZE);
      samples = memory.take<typename Convs::Sample>(BACK ? b : 1);
      for (int l = 0; l <= LAYERS; l++) entered[l] = memory.take<float>(b * width[l] + L);
      if (!BACK) return;
      sums = memory.take<typename Convs::Gradient>(1);
      int64_t widest = b;
      for (int l = 0; l <= LAYERS; l++) {
        error[l] = memory.take<float>(b * width[l] + L);
        if (width[l] > widest) widest = width[l];
      }
      spare = memory.take<float>((widest + TALL) * COLUMNS);
    }
  };

  template <bool BACK>
  static int64_t bytes(int64_t b) {
    Memory memory{nullptr};
    Pass<BACK>(memory, b);
    return memory.at - (char*)nullptr + 64;
  }

  template <bool BACK>
  static void forward(const float* w, const Samples& x, int64_t b, Pass<BACK>& pass) {
    float** entered = pass.entered;
    Convs::read(w, *pass.weights);
    for (int64_t i = 0; i < b; i++) {
      const float* sample = x.sample(i, b, SIZE, pass.room);
      if constexpr (Convs::EMPTY) memcpy(entered[0] + i * SIZE, sample, SIZE * sizeof(float));
      else Convs::template forward<BACK>(sample, *pass.weights, pass.samples[BACK ? i : 0], entered[0] + i * width[0]);
    }
    w += Convs::PARAMETERS;
    for (int l = 0; l < LAYERS; l++) {
      const int in = width[l], outs = width[l + 1];
      linear(b, outs, in, entered[l], w, w + (int64_t)outs * in, entered[l + 1]);
      if (l + 1 < LAYERS || RELU)
        for (int64_t i = 0; i < b * outs; i++) entered[l + 1][i] = relu(entered[l + 1][i]);
      w += (int64_t)outs * in + outs;
    }
  }

  // what goes out of the last layer, (b, width of it), to `out`
  static void outputs(const float* w, const Samples& x, int64_t b, float* out, Memory memory) {
    Pass<false> pass(memory, b);
    pass.entered[LAYERS] = out;
    forward(w, x, b, pass);
  }

  // after `forward`, with the gradient of what went out in `error[LAYERS]`: that of the parameters to `out`, that of the
  // samples to `d_in`, (b, C, H, W), either of them null where nobody needs it
  static void backward(const float* w, int64_t b, Pass<true>& pass, float* out, float* d_in) {
    float **entered = pass.entered, **error = pass.error;
    int64_t at = COUNT;
    for (int l = LAYERS - 1; l >= 0; l--) {
      const int in = width[l], outs = width[l + 1];
      at -= (int64_t)outs * in + outs;
      if (l + 1 < LAYERS || RELU)
        for (int64_t i = 0; i < b * outs; i++) error[l + 1][i] = entered[l + 1][i] <= 0 ? 0 : error[l + 1][i];
      if (out) {
        product(outs, in, b, error[l + 1], 1, outs, entered[l], in, out + at, in, pass.spare);
        float* bias = out + at + (int64_t)outs * in;
        memset(bias, 0, outs * sizeof(float));
        for (int64_t i = 0; i < b; i++)
          for (int o = 0; o < outs; o++) bias[o] += error[l + 1][i * outs + o];
      }
      if (l == 0 && Convs::EMPTY && !d_in) return;
      product(b, in, outs, error[l + 1], outs, 1, w + at, in, error[l], in, pass.spare);
    }
    if constexpr (Convs::EMPTY) {
      memcpy(d_in, error[0], b * SIZE * sizeof(float));
    } else {
      using First = typename Convs::First;
      alignas(64) float padded[First::IN + L];
      memset((void*)pass.sums, 0, sizeof *pass.sums);
      for (int64_t i = 0; i < b; i++) {
        if (d_in) memset(padded, 0, sizeof padded);
        const float* d = error[0] + i * width[0];
        Convs::backward(d, *pass.weights, pass.samples[i], *pass.sums, d_in ? padded : nullptr);
        for (int c = 0; c < First::C && d_in; c++)
          for (int y = 0; y < First::H; y++)
            for (int x = 0; x < First::W; x++)
              *d_in++ = padded[((y + First::P) * First::WP + x + First::P) * First::C + c];
      }
      if (out) Convs::write(*pass.sums, out);
    }
  }

  // the mean loss; w: parameters, x: (., C, H, W), bias: (classes,) joins the logits, or null; see `backward`
  static double gradient(const float* w, const Samples& x, const Targets& y, const float* bias, int64_t b, float* out,
                         float* d_in, Memory memory) {
    Pass<true> pass(memory, b);
    forward(w, x, b, pass);
    const double loss = cross_entropy(pass.entered[LAYERS], x, y, bias, b, pass.error[LAYERS]);
    backward(w, b, pass, out, d_in);
    return loss;
  }

  // the gradient of the parameters to `out`, d_out being that of what goes out
  static void pull_back(const float* w, const Samples& x, const float* d_out, int64_t b, float* out, Memory memory) {
    Pass<true> pass(memory, b);
    forward(w, x, b, pass);
    if (b) memcpy(pass.error[LAYERS], d_out, b * width[LAYERS] * sizeof(float));
    backward(w, b, pass, out, nullptr);
  }

  // the mean; leaves its gradient with respect to the logits in `error`
  static double cross_entropy(float* logits, const Samples& x, const Targets& y, const float* bias, int64_t b,
                              float* error) {
    constexpr int classes = width[LAYERS];
    double loss = 0;
    for (int64_t i = 0; i < b; i++) {
      float *z = logits + i * classes, *e = error + i * classes;
      for (int c = 0; c < classes && bias; c++) z[c] += bias[c];
      float most = z[0];
      for (int c = 1; c < classes; c++) most = z[c] > most || z[c] != z[c] ? z[c] : most;
      float total = 0;
      for (int c = 0; c < classes; c++) total += e[c] = expf(z[c] - most);
      if (y.labels) {
        const int64_t label = y.labels[x.at(i)];
        loss += logf(total) - (z[label] - most);
        for (int c = 0; c < classes; c++) e[c] /= total * b;
        e[label] -= 1.0f / b;
      } else {
        const float* share = y.shares + x.at(i) * classes;
        float all = 0;
        for (int c = 0; c < classes; c++) all += share[c], loss += share[c] * (logf(total) - (z[c] - most));
        for (int c = 0; c < classes; c++) e[c] = (e[c] / total * all - share[c]) / b;
      }
    }
    return loss / b;
  }
};

}  // namespace
