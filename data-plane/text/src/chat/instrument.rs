//! Rewrites a compiled template so that whatever makes a value pays for it; see `budget`.

use minijinja::Value;
use minijinja::machinery::{Instruction, Instructions};

use super::budget::{CONCAT, PAY, PAY_ADD, PAY_IN, PAY_MUL};
use super::sequences::SLICE;

/// Tells minijinja to look a filter up by name each time.
const NO_CACHE_SLOT: u8 = u8::MAX;

/// The same program with payments.
pub(super) fn instrument<'source>(program: &Instructions<'source>) -> Instructions<'source> {
    let mut output = Instructions::new(program.name(), program.source());
    let mut moved_to = Vec::with_capacity(program.len() + 1);
    for at in 0.. {
        moved_to.push(output_position(&output));
        let Some(instruction) = program.get(at) else { break };
        let line = program.get_line(at).and_then(|line| u16::try_from(line).ok()).unwrap_or(0);
        for instruction in with_payment(instruction.clone()) {
            output.add_with_line(instruction, line);
        }
    }
    for at in 0..output_position(&output) {
        if let Some(target) = output.get_mut(at).and_then(jump_target) {
            *target = moved_to.get(*target as usize).copied().unwrap_or(*target);
        }
    }
    output
}

fn output_position(program: &Instructions<'_>) -> u32 {
    u32::try_from(program.len()).expect("a template's length is bounded, and its program's with it")
}

fn with_payment(instruction: Instruction<'_>) -> Vec<Instruction<'_>> {
    let apply = |name, arguments| Instruction::ApplyFilter(name, Some(arguments), NO_CACHE_SLOT);
    match instruction {
        // Captures are not bounded by what the whole rendering may write, so literal text is emitted like a value.
        Instruction::EmitRaw(text) => vec![Instruction::LoadConst(Value::from(text)), Instruction::Emit],
        Instruction::StringConcat => vec![apply(CONCAT, 2)],
        Instruction::Add => vec![apply(PAY_ADD, 2), Instruction::UnpackList(2), Instruction::Add],
        Instruction::Mul => vec![apply(PAY_MUL, 2), Instruction::UnpackList(2), Instruction::Mul],
        Instruction::In => vec![apply(PAY_IN, 2), Instruction::UnpackList(2), Instruction::In],
        Instruction::Slice => vec![apply(SLICE, 4), apply(PAY, 1)],
        makes @ (Instruction::BuildMap(_) | Instruction::ApplyFilter(..) | Instruction::CallMethod(..)) => {
            vec![makes, apply(PAY, 1)]
        }
        Instruction::BuildList(Some(count)) => vec![Instruction::BuildList(Some(count)), apply(PAY, 1)],
        other => vec![other],
    }
}

fn jump_target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}
