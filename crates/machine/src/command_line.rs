//! What the kernel command line says to us.

/// Most servers of time that are taken: nobody asks more, and each costs a request.
pub(crate) const MAX_TIME_SERVERS: usize = 8;

/// Most consoles that the log is written to. A machine has one or two.
const MAX_CONSOLES: usize = 4;

/// What the kernel command line says to us. The kernel gives all of it to everybody in `/proc/cmdline`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCommandLine {
    /// `polis.volatile`: use no disks.
    pub volatile: bool,
    /// `polis.time-server`: servers of time, in the order in which they stand there.
    pub time_servers: Vec<String>,
    /// `console`: names of devices without `/dev/`, each once, in the order in which they stand there.
    pub consoles: Vec<String>,
    /// Options that begin with `polis.` and are not known: told, as most of them are known ones with a slip.
    pub unknown: Vec<String>,
}

impl KernelCommandLine {
    /// Reads the text of `/proc/cmdline`. Of an option that takes one value the last counts, as with the kernel's own.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut line = Self::default();
        for word in words(text) {
            let (name, value) = word.split_once('=').map_or((&*word, None), |(name, value)| (name, Some(value)));
            match (name, value) {
                ("console", Some(value)) => {
                    // What follows a comma are the speed and so on, which the kernel has set already.
                    let device = value.split(',').next().unwrap_or_default();
                    let is_name = !device.is_empty() && device.bytes().all(|byte| byte.is_ascii_alphanumeric());
                    if is_name && line.consoles.len() < MAX_CONSOLES && !line.consoles.iter().any(|old| old == device) {
                        line.consoles.push(device.to_owned());
                    }
                }
                ("polis.volatile", None) => line.volatile = true,
                // Who looks after the boot slots reads it by itself.
                ("polis.boot-entry", Some(_)) => {}
                ("polis.time-server", Some(value)) if !value.is_empty() => line.time_servers.push(value.to_owned()),
                (name, _) if name.starts_with("polis.") => line.unknown.push(word.clone()),
                _ => {}
            }
        }
        line.time_servers.truncate(MAX_TIME_SERVERS);
        line
    }

    /// Those consoles that are not a screen.
    pub(crate) fn serial_consoles(&self) -> impl Iterator<Item = &str> {
        let is_screen =
            |name: &str| name.strip_prefix("tty").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        self.consoles.iter().map(String::as_str).filter(move |name| !is_screen(name))
    }
}

/// Words, separated by blanks outside of double quotes, which are left out, as the kernel reads them.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in text.chars() {
        match character {
            '"' => quoted = !quoted,
            character if character.is_whitespace() && !quoted => words.push(String::new()),
            character => words.last_mut().expect("there is always one").push(character),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_options_are_taken() {
        let empty = KernelCommandLine::default;
        let text = |text: &str| text.to_owned();
        for (line, expected) in [
            ("", empty()),
            ("quiet panic=10 root=/dev/sda1 polisher=1", empty()),
            ("polis.volatile quiet\n", KernelCommandLine { volatile: true, ..empty() }),
            ("polis.volatile=1", KernelCommandLine { unknown: vec![text("polis.volatile=1")], ..empty() }),
            ("polis.tme-server=a", KernelCommandLine { unknown: vec![text("polis.tme-server=a")], ..empty() }),
            (
                "polis.time-server=a \"polis.time-server=b c\" polis.time-server=",
                KernelCommandLine {
                    time_servers: vec![text("a"), text("b c")],
                    unknown: vec![text("polis.time-server=")],
                    ..empty()
                },
            ),
            (
                "console=tty0 console=ttyS0,115200n8 console=ttyS0 console=../sda",
                KernelCommandLine { consoles: vec![text("tty0"), text("ttyS0")], ..empty() },
            ),
        ] {
            assert_eq!(KernelCommandLine::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn a_screen_is_no_serial_console() {
        let line = KernelCommandLine::parse("console=tty console=tty12 console=ttyS1 console=hvc0");
        assert_eq!(line.serial_consoles().collect::<Vec<_>>(), ["ttyS1", "hvc0"]);
    }

    #[test]
    fn what_is_taken_is_bounded() {
        let text: String = (0..50).map(|number| format!("polis.time-server=s{number} console=ttyS{number} ")).collect();
        let line = KernelCommandLine::parse(&text);
        assert_eq!((line.time_servers.len(), line.consoles.len()), (MAX_TIME_SERVERS, MAX_CONSOLES));
    }
}
