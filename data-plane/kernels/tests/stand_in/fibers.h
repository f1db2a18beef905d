// Stacks between which one thread of the operating system switches by hand.
#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace stand_in {

// A saved place of execution: a stack and where it was left.
struct Context {
#ifdef __x86_64__
    void* stack_pointer = nullptr;
#else
    ucontext_t saved;
#endif
    // The stack's extent and the sanitizer's shadow of it; of the scheduler's own context they are learnt on the way.
    const void* bottom = nullptr;
    size_t size = 0;
    void* fake_stack = nullptr;
};

// Leaves `from`, goes on at `to`; `last` says that `from` is never gone back to.
void switch_context(Context& from, Context& to, bool last);

// To be called first thing on a context that was switched to: tells the sanitizer, which learns the stack of `from`.
void arrived(Context& here, Context* from);

// Memory for the stacks of as many fibers as one block has threads, kept from block to block.
class Stacks {
public:
    static constexpr size_t SIZE = 128 * 1024;

    Stacks() = default;
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;
    ~Stacks();

    void reserve(size_t count);

    // A context that starts in `entry`, which must not return, on stack number `index`.
    Context prepare(size_t index, void (*entry)());

    // Whether the fiber on stack `index` has written to the last bytes of its stack.
    bool overflowed(size_t index) const;

private:
    unsigned char* base_ = nullptr;
    size_t count_ = 0;
    unsigned char* stack(size_t index) const;
};

}  // namespace stand_in
