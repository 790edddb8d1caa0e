// METALSIM_SWIZZLES_2, _3, _4: every swizzle of a vector with that many elements, in the letters xyzw and rgba.
//
// A macro cannot call itself, so every nesting level (A, B, C, D) has its own "for each element" macro. A family is a
// set of letters: X3 is x, y, z. Each level hands the letters and positions chosen so far to the next, newest first.
#pragma clang system_header

#define METALSIM_A_X2(M, F) M(F, x, 0) M(F, y, 1)
#define METALSIM_B_X2(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__)
#define METALSIM_C_X2(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__)
#define METALSIM_D_X2(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__)
#define METALSIM_A_X3(M, F) M(F, x, 0) M(F, y, 1) M(F, z, 2)
#define METALSIM_B_X3(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__) M(F, z, 2, __VA_ARGS__)
#define METALSIM_C_X3(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__) M(F, z, 2, __VA_ARGS__)
#define METALSIM_D_X3(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__) M(F, z, 2, __VA_ARGS__)
#define METALSIM_A_X4(M, F) M(F, x, 0) M(F, y, 1) M(F, z, 2) M(F, w, 3)
#define METALSIM_B_X4(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__) M(F, z, 2, __VA_ARGS__) M(F, w, 3, __VA_ARGS__)
#define METALSIM_C_X4(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__) M(F, z, 2, __VA_ARGS__) M(F, w, 3, __VA_ARGS__)
#define METALSIM_D_X4(M, F, ...) M(F, x, 0, __VA_ARGS__) M(F, y, 1, __VA_ARGS__) M(F, z, 2, __VA_ARGS__) M(F, w, 3, __VA_ARGS__)
#define METALSIM_A_R2(M, F) M(F, r, 0) M(F, g, 1)
#define METALSIM_B_R2(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__)
#define METALSIM_C_R2(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__)
#define METALSIM_D_R2(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__)
#define METALSIM_A_R3(M, F) M(F, r, 0) M(F, g, 1) M(F, b, 2)
#define METALSIM_B_R3(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__) M(F, b, 2, __VA_ARGS__)
#define METALSIM_C_R3(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__) M(F, b, 2, __VA_ARGS__)
#define METALSIM_D_R3(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__) M(F, b, 2, __VA_ARGS__)
#define METALSIM_A_R4(M, F) M(F, r, 0) M(F, g, 1) M(F, b, 2) M(F, a, 3)
#define METALSIM_B_R4(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__) M(F, b, 2, __VA_ARGS__) M(F, a, 3, __VA_ARGS__)
#define METALSIM_C_R4(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__) M(F, b, 2, __VA_ARGS__) M(F, a, 3, __VA_ARGS__)
#define METALSIM_D_R4(M, F, ...) M(F, r, 0, __VA_ARGS__) M(F, g, 1, __VA_ARGS__) M(F, b, 2, __VA_ARGS__) M(F, a, 3, __VA_ARGS__)

#define METALSIM_LEAF1(F, a, i) METALSIM_SWIZZLE1(a, i)
#define METALSIM_LEAF2(F, b, j, a, i) METALSIM_SWIZZLE2(a##b, i, j)
#define METALSIM_LEAF3(F, c, k, b, j, a, i) METALSIM_SWIZZLE3(a##b##c, i, j, k)
#define METALSIM_LEAF4(F, d, l, c, k, b, j, a, i) METALSIM_SWIZZLE4(a##b##c##d, i, j, k, l)
#define METALSIM_TWO(F, ...) METALSIM_B_##F(METALSIM_LEAF2, F, __VA_ARGS__)
#define METALSIM_THREE_B(F, ...) METALSIM_C_##F(METALSIM_LEAF3, F, __VA_ARGS__)
#define METALSIM_THREE(F, ...) METALSIM_B_##F(METALSIM_THREE_B, F, __VA_ARGS__)
#define METALSIM_FOUR_C(F, ...) METALSIM_D_##F(METALSIM_LEAF4, F, __VA_ARGS__)
#define METALSIM_FOUR_B(F, ...) METALSIM_C_##F(METALSIM_FOUR_C, F, __VA_ARGS__)
#define METALSIM_FOUR(F, ...) METALSIM_B_##F(METALSIM_FOUR_B, F, __VA_ARGS__)
#define METALSIM_MANY(F) \
  METALSIM_A_##F(METALSIM_TWO, F) METALSIM_A_##F(METALSIM_THREE, F) METALSIM_A_##F(METALSIM_FOUR, F)

// one letter of xyzw is a member; one of rgba is a property
#define METALSIM_SWIZZLES_2 METALSIM_MANY(X2) METALSIM_MANY(R2) METALSIM_A_R2(METALSIM_LEAF1, R2)
#define METALSIM_SWIZZLES_3 METALSIM_MANY(X3) METALSIM_MANY(R3) METALSIM_A_R3(METALSIM_LEAF1, R3)
#define METALSIM_SWIZZLES_4 METALSIM_MANY(X4) METALSIM_MANY(R4) METALSIM_A_R4(METALSIM_LEAF1, R4)
