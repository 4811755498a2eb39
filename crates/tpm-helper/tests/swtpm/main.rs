//! Sealing with a real TPM: the program swtpm, spoken to by the helper of this build through its real library.

mod emulator;
mod on_the_bus;
mod proxy;
mod sealing;
mod trouble;
