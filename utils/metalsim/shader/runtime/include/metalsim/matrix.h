// <metal_simdgroup_matrix>: 8 x 8 tiles. Every lane keeps the whole tile and computes all of it; each lane stores its
// two of the 64 elements, so that a store in divergent code leaves holes, and races between SIMD-groups are seen.
#pragma once
#pragma clang system_header

namespace metal {
template <class T, int Rows, int Columns>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "Metal's simdgroup_matrix is 8 x 8");
  T element[8][8];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < 8; i++)
      for (int j = 0; j < 8; j++) element[i][j] = i == j ? diagonal : T(0);
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Rows, int Columns = Rows, class V>
inline simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(V v) {
  simdgroup_matrix<T, Rows, Columns> m;
  for (auto& row : m.element)
    for (auto& x : row) x = T(v);
  return m;
}
template <class T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong row = 8, ulong2 origin = ulong2(0),
                           bool transpose = false) {
  p += origin.y * row + origin.x;
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 8; j++) m.element[i][j] = transpose ? p[j * row + i] : p[i * row + j];
}
template <class T>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* p, ulong row = 8, ulong2 origin = ulong2(0),
                            bool transpose = false) {
  p += origin.y * row + origin.x;
  const uint lane = metalsim_lane();
  for (uint k = 2 * lane; k < 2 * lane + 2; k++) {
    const uint i = k / 8, j = k % 8;
    p[transpose ? j * row + i : i * row + j] = m.element[i][j];
  }
}
template <class A, class B, class C, class D>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
  simdgroup_matrix<D, 8, 8> r;
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 8; j++) {
      float sum = float(c.element[i][j]);
      for (int k = 0; k < 8; k++) sum += float(a.element[i][k]) * float(b.element[k][j]);
      r.element[i][j] = D(sum);
    }
  d = r;
}
template <class A, class B, class D>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8>(D(0)));
}
}  // namespace metal
