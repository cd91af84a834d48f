// Rounded columns lie in records of 8 parts: for the first half of each its 16 codes, then for each the scale and the
// sum times the scale, 16 bytes of nothing, and the same for second halves. So what items next to each
// other load lies in different banks, whichever runs they take.
#define OF_HALVES 208
#define OF_RECORD (2 * OF_HALVES)
#define RUN_CODES(part, half) ((part) / 8 * OF_RECORD + (half) * OF_HALVES + (part) % 8 * 16)
#define RUN_SCALE(part, half) ((part) / 8 * OF_RECORD + (half) * OF_HALVES + 128 + (part) % 8 * 8)
