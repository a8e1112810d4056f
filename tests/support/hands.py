"""Somebody at a page, with a mouse or with a keyboard alone."""


class Hands:
    """Fills in a form and presses buttons.

    Parameters
    ----------
    opened
        The page.
    keyboard
        Whether nobody touches the mouse.
    """

    def __init__(self, opened, keyboard):
        self.opened, self.page, self.keyboard = opened, opened.page, keyboard

    def reach(self, selector):
        """Tab until the focus is there."""
        for _ in range(120):
            if self.page.evaluate("s => document.activeElement?.matches(s)", selector):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"never came to {selector}: {self.page.inner_text('body')}")

    def go(self, selector):
        """To a control, which is seen and where one can type then."""
        if self.keyboard:
            self.reach(selector)
        else:
            self.page.click(selector)

    def write(self, selector, text):
        """A text in place of what is there."""
        self.go(selector)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)

    def pick(self, selector, words):
        """The option of these words; their beginning is enough for a keyboard."""
        if self.keyboard:
            self.reach(selector)
            self.page.keyboard.type(words)
        else:
            labels = self.page.locator(f"{selector} option").all_inner_texts()
            (label,) = [one for one in labels if one.startswith(words)]
            self.page.select_option(selector, label=label)

    def choose(self, group, value):
        """One of several radio buttons."""
        wanted = f"{group} input[value='{value}']"
        if not self.keyboard:
            self.page.locator(f"{group} label.choice").filter(
                has=self.page.locator(f"input[value='{value}']")
            ).click()
            return
        self.reach(f"{group} input:checked")
        for _ in range(9):
            if self.page.evaluate("s => document.querySelector(s).checked", wanted):
                return
            self.page.keyboard.press("ArrowDown")
        raise AssertionError(f"{wanted} cannot be chosen")

    def press(self, selector):
        """A button or a link."""
        if self.keyboard:
            self.reach(selector)
            self.page.keyboard.press("Enter")
        else:
            self.page.click(selector)

    def tick(self, selector):
        """A box."""
        if self.keyboard:
            self.reach(selector)
            self.page.keyboard.press(" ")
        else:
            self.page.click(selector)
