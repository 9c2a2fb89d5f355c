//! Assembles filter rules into a BPF program.
//!
//! Libraries cover filters that only refuse calls. This one also notifies a broker, returns
//! `ENOSYS` for `clone3`, and refuses the x32 numbers of the same calls.

use std::collections::BTreeMap;

use exec_spawn::sandbox_setup::FilterInstruction;

/// Rule for one system call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FilterRule {
    /// Number of the call.
    pub(super) call: i64,
    /// The rule applies if all checks pass.
    pub(super) checks: Vec<ArgumentCheck>,
    /// Action if the rule applies.
    pub(super) verdict: FilterVerdict,
}

/// Check of one argument. The kernel reads most arguments as 32 bits, and so do these checks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ArgumentCheck {
    /// The masked bits have this value.
    Equals { argument: u8, mask: u32, value: u32 },
    /// The masked bits do not have this value.
    Differs { argument: u8, mask: u32, value: u32 },
    /// At least one of these bits is set.
    AnyBit { argument: u8, mask: u32 },
    /// The pointer is not null.
    NonNull { argument: u8 },
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FilterVerdict {
    /// The call fails with this errno.
    Fail(i32),
    /// The broker decides.
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

/// Bit in the numbers of x32 calls on x86-64.
const X32: u32 = 0x4000_0000;

/// Assembles the program. Rules for one call are tried in order.
pub(super) fn assemble(rules: &[FilterRule]) -> Vec<FilterInstruction> {
    let mut by_call: BTreeMap<i64, Vec<&FilterRule>> = BTreeMap::new();
    for rule in rules {
        by_call.entry(rule.call).or_default().push(rule);
    }
    let mut program = vec![
        load(ARCHITECTURE),
        // Other architectures use other numbers, which the rules do not cover.
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

/// Code for one call number, or a range of numbers.
struct CallBlock {
    first: u32,
    last: u32,
    /// Returns in every case.
    code: Vec<FilterInstruction>,
}

impl CallBlock {
    fn new(call: i64, rules: &[&FilterRule]) -> Self {
        let number = u32::try_from(call).unwrap_or(u32::MAX);
        let mut code: Vec<FilterInstruction> =
            rules.iter().flat_map(|rule| compile_rule(rule)).collect();
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

    /// Returns instructions that skip the code for numbers outside the range.
    fn guard(&self) -> Vec<FilterInstruction> {
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

/// Number of blocks that are tried linearly.
const LINEAR_BLOCKS: usize = 3;

/// Emits a binary search for the block of a number. The kernel evaluates a new filter once for
/// every known number, so this matters at installation.
fn search(blocks: &[CallBlock]) -> Vec<FilterInstruction> {
    if blocks.len() > LINEAR_BLOCKS {
        let (low, high) = blocks.split_at(blocks.len() / 2);
        let least = high.first().map_or(0, |block| block.first);
        let (low, high) = (search(low), search(high));
        let mut code = match u8::try_from(low.len()) {
            Ok(skipped) => vec![jump(JUMP_AT_LEAST, least, skipped, 0)],
            // A conditional jump reaches 255 instructions, an unconditional one any number.
            Err(_) => {
                let skipped = u32::try_from(low.len()).unwrap_or(u32::MAX);
                vec![jump(JUMP_AT_LEAST, least, 0, 1), jump(JUMP, skipped, 0, 0)]
            }
        };
        code.extend(low);
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

fn compile_rule(rule: &FilterRule) -> Vec<FilterInstruction> {
    let mut checks: Vec<Vec<FilterInstruction>> = Vec::new();
    // Backwards, because each check needs the distance to the end of the rule.
    let mut remaining = 1;
    for check in rule.checks.iter().rev() {
        let code = compile_check(*check, remaining);
        remaining += u8::try_from(code.len()).unwrap_or(u8::MAX);
        checks.push(code);
    }
    let mut code: Vec<FilterInstruction> = checks.into_iter().rev().flatten().collect();
    code.push(return_value(match rule.verdict {
        FilterVerdict::Fail(number) => ERRNO | errno(number),
        FilterVerdict::Notify => USER_NOTIF,
    }));
    code
}

/// Falls through if the check passes; otherwise skips the following `remaining` instructions.
fn compile_check(check: ArgumentCheck, remaining: u8) -> Vec<FilterInstruction> {
    match check {
        ArgumentCheck::Equals {
            argument,
            mask,
            value,
        } => vec![
            load(low_word(argument)),
            mask_bits(mask),
            jump(JUMP_EQUAL, value, 0, remaining),
        ],
        ArgumentCheck::Differs {
            argument,
            mask,
            value,
        } => vec![
            load(low_word(argument)),
            mask_bits(mask),
            jump(JUMP_EQUAL, value, remaining, 0),
        ],
        ArgumentCheck::AnyBit { argument, mask } => {
            vec![
                load(low_word(argument)),
                jump(JUMP_BITS, mask, 0, remaining),
            ]
        }
        ArgumentCheck::NonNull { argument } => vec![
            load(low_word(argument)),
            jump(JUMP_EQUAL, 0, 0, 2),
            load(low_word(argument) + 4),
            jump(JUMP_EQUAL, 0, remaining, 0),
        ],
    }
}

fn low_word(argument: u8) -> u32 {
    ARGUMENTS + 8 * u32::from(argument)
}

fn errno(number: i32) -> u32 {
    number.unsigned_abs() & 0xffff
}

fn load(offset: u32) -> FilterInstruction {
    jump(LOAD, offset, 0, 0)
}

fn mask_bits(mask: u32) -> FilterInstruction {
    jump(AND, mask, 0, 0)
}

fn return_value(value: u32) -> FilterInstruction {
    jump(RETURN, value, 0, 0)
}

fn jump(code: u16, k: u32, if_true: u8, if_false: u8) -> FilterInstruction {
    FilterInstruction {
        code,
        if_true,
        if_false,
        k,
    }
}
