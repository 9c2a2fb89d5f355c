//! Rules become a program for the kernel's packet filter machine.
//!
//! A library would do for rules that only refuse; ours also notify, answer clone3 with "no such call",
//! and must not be passed by with the x32 numbers of the same calls.

use std::collections::BTreeMap;

use exec_spawn::enclosure::Instruction;

/// What becomes of calls of one number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FilterRule {
    /// The number.
    pub(super) call: i64,
    /// All of these must be true.
    pub(super) checks: Vec<ArgumentCheck>,
    /// What becomes of it then.
    pub(super) verdict: FilterVerdict,
}

/// A look at one argument. The kernel takes most arguments as 32 bits: so do these.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ArgumentCheck {
    /// These bits have this value.
    Equals { argument: u8, mask: u32, value: u32 },
    /// These bits do not have this value.
    Differs { argument: u8, mask: u32, value: u32 },
    /// Some of these bits are set.
    AnyBit { argument: u8, mask: u32 },
    /// A pointer that points somewhere.
    NonNull { argument: u8 },
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FilterVerdict {
    /// It fails.
    Fail(i32),
    /// The broker is asked.
    Notify,
}

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const JUMP_BITS: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const USER_NOTIF: u32 = 0x7fc0_0000;

/// Offsets in `seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
const THIS_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const THIS_ARCHITECTURE: u32 = 0xc000_00b7;

/// On x86-64, calls of the x32 ABI have this bit in their numbers.
const X32: u32 = 0x4000_0000;

/// Makes the program. Rules of one call are tried in their order.
pub(super) fn assemble(rules: &[FilterRule]) -> Vec<Instruction> {
    let mut by_call: BTreeMap<i64, Vec<&FilterRule>> = BTreeMap::new();
    for rule in rules {
        by_call.entry(rule.call).or_default().push(rule);
    }
    let mut program = vec![
        load(ARCHITECTURE),
        // A program of another architecture has other numbers, which no rule looks at.
        jump(JUMP_EQUAL, THIS_ARCHITECTURE, 1, 0),
        return_value(KILL_PROCESS),
        load(NUMBER),
    ];
    if cfg!(target_arch = "x86_64") {
        program.push(jump(JUMP_AT_LEAST, X32, 0, 1));
        program.push(return_value(ERRNO | errno(libc::ENOSYS)));
    }
    let mut blocks: Vec<CallBlock> = Vec::new();
    for (call, rules) in by_call {
        let block = CallBlock::new(call, &rules);
        match blocks.last_mut() {
            Some(last) if last.is_followed_by(&block) => last.last = block.last,
            Some(_) | None => blocks.push(block),
        }
    }
    program.extend(search(&blocks));
    program
}

/// What is done with the calls of one number, or of several in a row.
struct CallBlock {
    first: u32,
    last: u32,
    /// Returns in every case.
    code: Vec<Instruction>,
}

impl CallBlock {
    fn new(call: i64, rules: &[&FilterRule]) -> Self {
        let number = u32::try_from(call).unwrap_or(u32::MAX);
        let mut code: Vec<Instruction> = rules.iter().flat_map(|rule| compile_rule(rule)).collect();
        if rules.iter().all(|rule| !rule.checks.is_empty()) {
            code.push(return_value(ALLOW));
        }
        Self {
            first: number,
            last: number,
            code,
        }
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        self.last + 1 == next.first && self.code == next.code
    }

    /// Skips the code for numbers that are below or above.
    fn guard(&self) -> Vec<Instruction> {
        let length = u8::try_from(self.code.len()).unwrap_or(u8::MAX);
        if self.first == self.last {
            return vec![jump(JUMP_EQUAL, self.first, 0, length)];
        }
        vec![
            jump(JUMP_AT_LEAST, self.first, 0, length.saturating_add(1)),
            jump(JUMP_AT_LEAST, self.last + 1, length, 0),
        ]
    }
}

/// How many blocks are tried one by one.
const LINEAR_BLOCKS: usize = 3;

/// Finds the block of a number by halves: when a filter is installed, the kernel runs it once for every
/// number it knows.
fn search(blocks: &[CallBlock]) -> Vec<Instruction> {
    if blocks.len() > LINEAR_BLOCKS {
        let (low_word, high) = blocks.split_at(blocks.len() / 2);
        let least = high.first().map_or(0, |block| block.first);
        let (low_word, high) = (search(low_word), search(high));
        let mut code = match u8::try_from(low_word.len()) {
            Ok(over) => vec![jump(JUMP_AT_LEAST, least, over, 0)],
            // Conditional jumps reach 255 instructions, this one any number.
            Err(_) => {
                let over = u32::try_from(low_word.len()).unwrap_or(u32::MAX);
                vec![jump(JUMP_AT_LEAST, least, 0, 1), jump(JUMP, over, 0, 0)]
            }
        };
        code.extend(low_word);
        code.extend(high);
        return code;
    }
    let mut code = Vec::new();
    for block in blocks {
        code.extend(block.guard());
        code.extend_from_slice(&block.code);
    }
    code.push(return_value(ALLOW));
    code
}

fn compile_rule(rule: &FilterRule) -> Vec<Instruction> {
    let mut checks: Vec<Vec<Instruction>> = Vec::new();
    // From the last check to the first: each knows how far it is to the end of the rule.
    let mut rest = 1;
    for check in rule.checks.iter().rev() {
        let code = compile_check(*check, rest);
        rest += u8::try_from(code.len()).unwrap_or(u8::MAX);
        checks.push(code);
    }
    let mut code: Vec<Instruction> = checks.into_iter().rev().flatten().collect();
    code.push(return_value(match rule.verdict {
        FilterVerdict::Fail(number) => ERRNO | errno(number),
        FilterVerdict::Notify => USER_NOTIF,
    }));
    code
}

/// Falls through if the check is true; else skips the `rest` instructions behind it.
fn compile_check(check: ArgumentCheck, rest: u8) -> Vec<Instruction> {
    match check {
        ArgumentCheck::Equals {
            argument,
            mask,
            value,
        } => vec![
            load(low_word(argument)),
            mask_bits(mask),
            jump(JUMP_EQUAL, value, 0, rest),
        ],
        ArgumentCheck::Differs {
            argument,
            mask,
            value,
        } => vec![
            load(low_word(argument)),
            mask_bits(mask),
            jump(JUMP_EQUAL, value, rest, 0),
        ],
        ArgumentCheck::AnyBit { argument, mask } => {
            vec![load(low_word(argument)), jump(JUMP_BITS, mask, 0, rest)]
        }
        ArgumentCheck::NonNull { argument } => vec![
            load(low_word(argument)),
            jump(JUMP_EQUAL, 0, 0, 2),
            load(low_word(argument) + 4),
            jump(JUMP_EQUAL, 0, rest, 0),
        ],
    }
}

fn low_word(argument: u8) -> u32 {
    ARGUMENTS + 8 * u32::from(argument)
}

fn errno(number: i32) -> u32 {
    number.unsigned_abs() & 0xffff
}

fn load(offset: u32) -> Instruction {
    jump(LOAD, offset, 0, 0)
}

fn mask_bits(mask: u32) -> Instruction {
    jump(AND, mask, 0, 0)
}

fn return_value(value: u32) -> Instruction {
    jump(RETURN, value, 0, 0)
}

fn jump(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction {
        code,
        if_true,
        if_false,
        k,
    }
}
