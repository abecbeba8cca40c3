//! A decoder for tests: its logits depend on every token of the row and on nothing else.

use crate::runtime::{Decode, RuntimeError, Step};

/// Predicts (sum of all tokens of the row × 31 + their count) modulo the vocabulary.
pub(super) struct Adder {
    rows: Vec<Vec<u32>>,
    window: usize,
    vocab: u32,
    pub(super) passes: Vec<Pass>,
}

/// What was asked of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// So many tokens of a prompt.
    Prefill(usize),
    /// One token for each of so many rows.
    Step(usize),
    /// So many tokens of one row, each with its logits.
    Verify(usize),
}

impl Adder {
    pub(super) fn new(rows: usize, window: usize, vocab: u32) -> Self {
        Self { rows: vec![Vec::new(); rows], window, vocab, passes: Vec::new() }
    }

    /// Tokens of prompts that were computed.
    pub(super) fn prefilled(&self) -> usize {
        self.passes.iter().map(|pass| if let Pass::Prefill(tokens) = pass { *tokens } else { 0 }).sum()
    }

    fn append(&mut self, row: usize, past: usize, tokens: &[u32]) -> Vec<f32> {
        let row = &mut self.rows[row];
        assert!(row.len() >= past, "the row holds {} tokens, not {past}", row.len());
        row.truncate(past);
        row.extend_from_slice(tokens);
        assert!(row.len() <= self.window);
        let next = (row.iter().sum::<u32>() * 31 + u32::try_from(row.len()).unwrap()) % self.vocab;
        (0..self.vocab).map(|place| f32::from(u8::from(self.token(place) == next))).collect()
    }
}

impl Decode for Adder {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn window(&self) -> usize {
        self.window
    }

    fn prefill(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<f32>, RuntimeError> {
        self.passes.push(Pass::Prefill(tokens.len()));
        Ok(self.append(row, past, tokens))
    }

    fn step(&mut self, steps: &[Step]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        self.passes.push(Pass::Step(steps.len()));
        Ok(steps.iter().enumerate().map(|(row, step)| self.append(row, step.past, &[step.token])).collect())
    }

    fn verify(&mut self, row: usize, past: usize, tokens: &[u32]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        self.passes.push(Pass::Verify(tokens.len()));
        Ok(tokens.iter().enumerate().map(|(place, &token)| self.append(row, past + place, &[token])).collect())
    }

    /// Backwards, so that whoever takes a place for a token writes something else.
    fn token(&self, place: u32) -> u32 {
        self.vocab - 1 - place
    }

    fn place(&self, token: u32) -> Option<u32> {
        (self.vocab - 1).checked_sub(token)
    }

    fn verifies(&self) -> bool {
        true
    }

    fn copy(&mut self, from: usize, to: usize, length: usize) {
        let copied = self.rows[from][..length].to_vec();
        self.rows[to] = copied;
    }
}
