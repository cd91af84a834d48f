// From one fiber to another on one thread: registers that a call keeps, and the stack.
#pragma once
#include <cstddef>

#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)

struct Context {
  void* stack;
};

extern "C" void simt_switch_stack(void** from, void* to);
asm(R"(
.text
.globl simt_switch_stack
.hidden simt_switch_stack
.type simt_switch_stack,@function
simt_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch_stack, .-simt_switch_stack
)");

inline void simt_switch(Context* from, Context* to) { simt_switch_stack(&from->stack, to->stack); }

// `main` never returns. Functions expect a stack that is 8 bytes off a multiple of 16.
inline void simt_prepare(Context* context, char* low, size_t size, void (*main)()) {
  void** top = (void**)(low + size) - 1;
  *--top = (void*)main;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  context->stack = top;
}

#else
// Other processors, or where SIMT_UCONTEXT asks for it. The system's own switch also saves the
// signal mask, which makes it slow.
#include <ucontext.h>

struct Context {
  ucontext_t state;
};

inline void simt_switch(Context* from, Context* to) { swapcontext(&from->state, &to->state); }

inline void simt_prepare(Context* context, char* low, size_t size, void (*main)()) {
  getcontext(&context->state);
  context->state.uc_stack.ss_sp = low;
  context->state.uc_stack.ss_size = size;
  context->state.uc_link = nullptr;
  makecontext(&context->state, main, 0);
}

#endif
