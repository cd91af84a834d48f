// A rounded column: of each 8 parts of 32 elements 16 codes of every first half, then of every second one. Behind all
// codes the scale, and the sum of codes times the scale, of each part; behind these the same of each half, in the order
// of halves. Items next to each other load from different banks, be it the same half of 8 parts, or both halves of
// every second part, or of every fourth of two blocks: so places of halves depend on their bits by an exclusive or.
#define WHOLE(length) (((length) + 255) / 256 * 256)
#define HALF_CODES(part, half) ((part) / 8 * 256 + (half) * 128 + (((part) % 8) ^ (half) ^ ((part) / 8 % 2 * 2)) * 16)
#define PART_SCALE(length, part) (WHOLE(length) + (part) * 8)
#define HALF_SCALE(length, part, half) (WHOLE(length) / 4 * 5 + (part) / 8 * 128 + (half) * 64 + (part) % 8 * 8)
