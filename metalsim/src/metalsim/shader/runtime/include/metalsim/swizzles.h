// METALSIM_SWIZZLES_2, _3, _4: every swizzle of a vector with that many elements, in the letters xyzw and rgba.
//
// A family is a set of letters: X3 is x, y, z. Each level hands the letters and positions chosen so far to the next,
// newest first. A macro cannot call itself: METALSIM_DEEPER puts the next level's call off until METALSIM_AGAIN reads the
// text once more.
#pragma clang system_header

#define METALSIM_X2(M, F, ...) M(F, x, 0, ##__VA_ARGS__) M(F, y, 1, ##__VA_ARGS__)
#define METALSIM_X3(M, F, ...) METALSIM_X2(M, F, ##__VA_ARGS__) M(F, z, 2, ##__VA_ARGS__)
#define METALSIM_X4(M, F, ...) METALSIM_X3(M, F, ##__VA_ARGS__) M(F, w, 3, ##__VA_ARGS__)
#define METALSIM_R2(M, F, ...) M(F, r, 0, ##__VA_ARGS__) M(F, g, 1, ##__VA_ARGS__)
#define METALSIM_R3(M, F, ...) METALSIM_R2(M, F, ##__VA_ARGS__) M(F, b, 2, ##__VA_ARGS__)
#define METALSIM_R4(M, F, ...) METALSIM_R3(M, F, ##__VA_ARGS__) M(F, a, 3, ##__VA_ARGS__)
#define METALSIM_FAMILY(F) METALSIM_##F
#define METALSIM_NOTHING()
#define METALSIM_DEEPER METALSIM_FAMILY METALSIM_NOTHING()
#define METALSIM_ONCE_MORE(...) __VA_ARGS__
#define METALSIM_AGAIN(...) METALSIM_ONCE_MORE(METALSIM_ONCE_MORE(__VA_ARGS__))

#define METALSIM_LEAF1(F, a, i) METALSIM_SWIZZLE1(a, i)
#define METALSIM_LEAF2(F, b, j, a, i) METALSIM_SWIZZLE(a##b, 2, i, j)
#define METALSIM_LEAF3(F, c, k, b, j, a, i) METALSIM_SWIZZLE(a##b##c, 3, i, j, k)
#define METALSIM_LEAF4(F, d, l, c, k, b, j, a, i) METALSIM_SWIZZLE(a##b##c##d, 4, i, j, k, l)
#define METALSIM_TWO(F, ...) METALSIM_DEEPER (F)(METALSIM_LEAF2, F, __VA_ARGS__)
#define METALSIM_THREE_B(F, ...) METALSIM_DEEPER (F)(METALSIM_LEAF3, F, __VA_ARGS__)
#define METALSIM_THREE(F, ...) METALSIM_DEEPER (F)(METALSIM_THREE_B, F, __VA_ARGS__)
#define METALSIM_FOUR_C(F, ...) METALSIM_DEEPER (F)(METALSIM_LEAF4, F, __VA_ARGS__)
#define METALSIM_FOUR_B(F, ...) METALSIM_DEEPER (F)(METALSIM_FOUR_C, F, __VA_ARGS__)
#define METALSIM_FOUR(F, ...) METALSIM_DEEPER (F)(METALSIM_FOUR_B, F, __VA_ARGS__)
#define METALSIM_MANY(F) \
  METALSIM_AGAIN(METALSIM_##F(METALSIM_TWO, F) METALSIM_##F(METALSIM_THREE, F) METALSIM_##F(METALSIM_FOUR, F))

// one letter of xyzw is a member; one of rgba is a property
#define METALSIM_SWIZZLES_2 METALSIM_MANY(X2) METALSIM_MANY(R2) METALSIM_R2(METALSIM_LEAF1, R2)
#define METALSIM_SWIZZLES_3 METALSIM_MANY(X3) METALSIM_MANY(R3) METALSIM_R3(METALSIM_LEAF1, R3)
#define METALSIM_SWIZZLES_4 METALSIM_MANY(X4) METALSIM_MANY(R4) METALSIM_R4(METALSIM_LEAF1, R4)
