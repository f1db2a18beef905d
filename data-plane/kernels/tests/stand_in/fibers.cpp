// Stacks and the switch between them: a few instructions on x86-64, ucontext elsewhere.
#include "fibers.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace stand_in {
namespace {

// Between two stacks, so that they do not share the sets of the cache.
constexpr size_t STAGGER = 576;
constexpr size_t PITCH = Stacks::SIZE + STAGGER;
constexpr uint64_t CANARY = 0x57eac4ca9a5e5a5eull;

}  // namespace

#ifdef __x86_64__
extern "C" void weir_stand_in_switch(void** save, void* to);
// Keeps what the System V ABI says that a function must keep.
asm(R"(
.text
.globl weir_stand_in_switch
.hidden weir_stand_in_switch
.type weir_stand_in_switch, @function
weir_stand_in_switch:
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
.size weir_stand_in_switch, . - weir_stand_in_switch
)");
#endif

void switch_context(Context& from, Context& to, [[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.bottom, to.size);
#endif
#ifdef __x86_64__
    weir_stand_in_switch(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.saved, &to.saved);
#endif
}

void arrived([[maybe_unused]] Context& here, [[maybe_unused]] Context* from) {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(here.fake_stack, &bottom, &size);
    if (from) from->bottom = bottom, from->size = size;
#endif
}

Stacks::~Stacks() {
    if (base_) munmap(base_, PITCH * count_);
}

unsigned char* Stacks::stack(size_t index) const { return base_ + PITCH * index; }

void Stacks::reserve(size_t count) {
    if (count <= count_) return;
    if (base_) munmap(base_, PITCH * count_);
    // Touched only as far as the fibers go down.
    void* memory = mmap(nullptr, PITCH * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::fprintf(stderr, "stand-in: no memory for %zu stacks\n", count);
        std::abort();
    }
    base_ = static_cast<unsigned char*>(memory);
    count_ = count;
}

Context Stacks::prepare(size_t index, void (*entry)()) {
    Context context;
    context.bottom = stack(index);
    context.size = SIZE;
    std::memcpy(stack(index), &CANARY, sizeof CANARY);
#if defined(__SANITIZE_ADDRESS__)
    // A fiber that was given up in the middle has left its frames marked.
    __asan_unpoison_memory_region(stack(index), SIZE);
#endif
#ifdef __x86_64__
    const auto top = (reinterpret_cast<uintptr_t>(stack(index)) + SIZE) & ~uintptr_t(15);
    auto* slot = reinterpret_cast<void**>(top);
    *--slot = nullptr;                           // entry's return address, so that its frame is aligned as after a call
    *--slot = reinterpret_cast<void*>(entry);    // taken by the switch's ret
    for (int i = 0; i < 6; ++i) *--slot = nullptr;
    context.stack_pointer = slot;
#else
    getcontext(&context.saved);
    context.saved.uc_stack.ss_sp = stack(index);
    context.saved.uc_stack.ss_size = SIZE;
    context.saved.uc_link = nullptr;
    makecontext(&context.saved, entry, 0);
#endif
    return context;
}

bool Stacks::overflowed(size_t index) const { return std::memcmp(stack(index), &CANARY, sizeof CANARY) != 0; }

}  // namespace stand_in
