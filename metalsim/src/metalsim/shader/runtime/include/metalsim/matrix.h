// <metal_simdgroup_matrix>: 8 x 8 tiles. Each lane keeps two neighbours of a row, the same as on Apple's GPUs: kernels of
// MLX and candle read and write them there, with thread_elements(). A product is a meeting point of all lanes.
#pragma once
#pragma clang system_header

namespace metal {
// Where in a tile a lane's two elements are: the first; the second is in the next column.
struct metalsim_in_tile {
  uint row, column;
  static metalsim_in_tile of_this_lane() {
    const uint lane = metalsim_lane();
    return {(lane >> 2 & 4) | (lane >> 1 & 3), (lane >> 1 & 4) | (lane << 1 & 2)};
  }
  static uint lane_with(uint row, uint column) {
    return (row & 4) << 2 | (row & 3) << 1 | (column & 4) << 1 | (column >> 1 & 1);
  }
};

template <class T, int Rows, int Columns>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "Metal's simdgroup_matrix is 8 x 8");
  typedef vec<T, 2> storage_type;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    const metalsim_in_tile at = metalsim_in_tile::of_this_lane();
    for (uint k = 0; k < 2; k++) elements.at(k) = at.row == at.column + k ? diagonal : T(0);
  }
  storage_type& thread_elements() { return elements; }
  const storage_type& thread_elements() const { return elements; }

 private:
  storage_type elements;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Rows, int Columns = Rows, class V>
inline simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(V v) {
  simdgroup_matrix<T, Rows, Columns> m;
  for (uint k = 0; k < 2; k++) m.thread_elements().at(k) = T(v);
  return m;
}
// How far from the tile's first element in memory the k-th of this lane's two lies.
inline ulong metalsim_distance(uint k, ulong row, bool transpose) {
  const metalsim_in_tile at = metalsim_in_tile::of_this_lane();
  return transpose ? (at.column + k) * row + at.row : at.row * row + at.column + k;
}
template <class T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong row = 8, ulong2 origin = ulong2(0),
                           bool transpose = false) {
  p += origin.y * row + origin.x;
  for (uint k = 0; k < 2; k++) m.thread_elements().at(k) = p[metalsim_distance(k, row, transpose)];
}
template <class T>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* p, ulong row = 8, ulong2 origin = ulong2(0),
                            bool transpose = false) {
  p += origin.y * row + origin.x;
  for (uint k = 0; k < 2; k++) p[metalsim_distance(k, row, transpose)] = m.thread_elements().at(k);
}
template <class A, class B>
struct metalsim_factors {
  vec<A, 2> a;
  vec<B, 2> b;
};
template <class A, class B, class C, class D>
METALSIM_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                                   const simdgroup_matrix<B, 8, 8>& b,
                                                   const simdgroup_matrix<C, 8, 8>& c) {
  const auto all = metalsim_all(metalsim_factors<A, B>{a.thread_elements(), b.thread_elements()});
  const metalsim_in_tile at = metalsim_in_tile::of_this_lane();
  vec<D, 2> r;
  for (uint j = 0; j < 2; j++) {
    float sum = float(c.thread_elements().at(j));
    for (uint k = 0; k < 8; k++)
      sum += float(all.from(metalsim_in_tile::lane_with(at.row, k)).a.at(k & 1)) *
             float(all.from(metalsim_in_tile::lane_with(k, at.column)).b.at(j));
    r.at(j) = D(sum);
  }
  d.thread_elements() = r;
}
template <class A, class B, class D>
METALSIM_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                        const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8>(D(0)));
}
template <class A, class B>
METALSIM_INLINE simdgroup_matrix<A, 8, 8> operator*(const simdgroup_matrix<A, 8, 8>& a,
                                                    const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_matrix<A, 8, 8> product;
  simdgroup_multiply(product, a, b);
  return product;
}
}  // namespace metal
